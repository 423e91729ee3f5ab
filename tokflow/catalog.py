"""What is in a store, found by looking: for who has a path and no dataset's config.

<store>/<dataset>/tokenizer/<fingerprint[:16]>
<store>/<dataset>/{tokens,split,sequences}/<partition>/<fingerprint[:16]>
<store>/<dataset>/exports/<name>/<fingerprint[:16]>, latest
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokflow.errors import CorruptOutputError, MissingOutputError, four_parts
from tokflow.exports import Part, layout_of
from tokflow.exports.part import make_parts
from tokflow.manifest import Manifest, is_complete, read_manifest
from tokflow.packing import PackingConfig
from tokflow.sequences import FileSequences, open_sequences
from tokflow.spans import Split, open_split
from tokflow.storage import MANIFEST_NAME
from tokflow.tokenizer import Tokenizer, tokenizer_of
from tokflow.tokens import TokenShard, open_token_shard

STAGE_FOLDERS = ("tokenizer", "tokens", "split", "sequences", "exports")
"""The folders of a dataset that hold outputs, in the order of the stages."""


@dataclass(frozen=True, slots=True)
class Found:
    """A finished output in a store, its parents found by its manifest."""

    folder: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """`tokens of a.jsonl`, or `export bin`: how messages call it."""
        manifest = self.manifest
        if manifest.stage == "export":
            return f"export {self.folder.parent.name}"
        return f"{manifest.stage} of {manifest.partition}" if manifest.partition else manifest.stage

    @property
    def dataset_folder(self) -> Path:
        """`<store>/<dataset>`, if the folder is where it was made; else a folder above it."""
        depth = {"tokenizer": 1, "export": 2}.get(self.manifest.stage)
        if depth is None:
            depth = len(str(self.manifest.partition).split("/")) + 1
        parents = self.folder.parents
        return parents[min(depth, len(parents) - 1)]

    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer that made its tokens; None where the store does not have it."""
        if self.manifest.stage == "tokenizer":
            return tokenizer_of(self.manifest, self.folder)
        if self.manifest.stage == "export":
            return find_tokenizer(
                self.dataset_folder, str(self.manifest.details["tokenizer_fingerprint"])
            )
        shard = self.shard()
        return find_tokenizer(self.dataset_folder, shard.manifest.parents["tokenizer"])

    def shard(self) -> TokenShard:
        """Return the token shard that this is, or is made from.

        Raises: MissingOutputError.
        """
        if self.manifest.stage == "tokens":
            return open_token_shard(self.folder)
        if self.manifest.stage == "sequences":
            return self.split().shard
        return open_token_shard(self._parent("tokens", self.manifest.parents["tokens"]))

    def split(self) -> Split:
        """Return the split that this is, or is made from.

        Raises: MissingOutputError.
        """
        if self.manifest.stage == "split":
            return open_split(self.folder, self.shard())
        folder = self._parent("split", self.manifest.parents["split"])
        return Found(folder, read_manifest(folder)).split()

    def sequences(self) -> FileSequences:
        """Return the sequences that this is.

        Raises: MissingOutputError.
        """
        return open_sequences(self.folder, self.split())

    def converted_from(self) -> "Found | None":
        """Return the export that `tokflow convert` made this one from; None of others.

        Raises: MissingOutputError where the store does not have it any more.
        """
        if "export" not in self.manifest.parents or self.manifest.partition is not None:
            return None
        fingerprint = self.manifest.parents["export"]
        exports = self.dataset_folder / "exports"
        for folder in sorted(exports.glob(f"*/{fingerprint[:16]}")):
            if is_complete(folder):
                return Found(folder, read_manifest(folder))
        raise MissingOutputError(
            four_parts(
                where=self.folder,
                expected=f"the export {fingerprint[:7]}, which it was converted from",
                found="none in the same store",
                remedy="keep both in one store",
            )
        )

    def inputs(self) -> list["Found"]:
        """Return the outputs that this one is compared with: its parent and what that was made
        from, down to the token shard; of an export those of every file.

        Raises: MissingOutputError where the store does not have one of them any more;
        CorruptOutputError where a manifest cannot be read.
        """
        if (source := self.converted_from()) is not None:
            return [source]
        stage = {"split": "tokens", "sequences": "split"}.get(self.manifest.stage)
        folders = [self._parent(stage, self.manifest.parents[stage])] if stage else []
        if self.manifest.stage == "export":
            folders = self._folders_of_parents()
        direct = [Found(folder, read_manifest(folder)) for folder in folders]
        return [*direct, *(found for parent in direct for found in parent.inputs())]

    def parts(self) -> list[Part]:
        """Return what this export is made from, in the order of its parts.

        Of a converted export: what the one is made from that it was converted from.

        Raises: MissingOutputError where the store does not have it any more, as where only the
        export was copied elsewhere.
        """
        if (source := self.converted_from()) is not None:
            return source.parts()
        manifest = self.manifest
        details = manifest.details
        is_packed = layout_of(manifest).made_of == "sequences"
        parents = [Found(folder, read_manifest(folder)) for folder in self._folders_of_parents()]
        sequences = [parent.sequences() for parent in parents] if is_packed else []
        splits = (
            [f.split for f in sequences] if is_packed else [parent.split() for parent in parents]
        )
        packing = PackingConfig(**manifest.config.get("packing", {}))
        return make_parts(
            details["parts"], details, splits=splits, sequences_of=sequences, packing=packing
        )

    def split_of(self, raw_file: str) -> Split:
        """Return the split of one raw file, among those that this export is made from.

        Raises: MissingOutputError, as `parts`.
        """
        if (source := self.converted_from()) is not None:
            return source.split_of(raw_file)
        folder = self._folder_of_parent(raw_file)
        return Found(folder, read_manifest(folder)).split()

    def _folders_of_parents(self) -> list[Path]:
        return [self._folder_of_parent(raw_file) for raw_file in sorted(self.manifest.parents)]

    def _folder_of_parent(self, raw_file: str) -> Path:
        """Return where the sequences or the split of a raw file are, of which this is an export."""
        stage = "sequences" if layout_of(self.manifest).made_of == "sequences" else "split"
        return self.dataset_folder / stage / raw_file / self.manifest.parents[raw_file][:16]

    def _parent(self, stage: str, fingerprint: str) -> Path:
        return self.dataset_folder / stage / str(self.manifest.partition) / fingerprint[:16]


def find_output(path: Path) -> Found:
    """Return the output that `path` is, is a file of, or leads to.

    `path`: the folder, a link to it, a file in it, or the folder of an export with a `latest`.

    Raises: MissingOutputError where nothing finished is there, CorruptOutputError.
    """
    resolved = path.resolve()
    for folder in (resolved, resolved / "latest", *list(resolved.parents)[:3]):
        if is_complete(folder):
            return Found(folder.resolve(), read_manifest(folder))
    inside = [found.folder for found in find_outputs(resolved)] if resolved.is_dir() else []
    if len(inside) == 1:
        return Found(inside[0], read_manifest(inside[0]))
    if inside:
        found = f"a folder of {len(inside):,} outputs such as {inside[0].relative_to(resolved)}"
    else:
        found = "no such file or folder" if not resolved.exists() else f"no {MANIFEST_NAME}"
    raise MissingOutputError(
        four_parts(
            where=path,
            expected="the folder of a token shard, a split, sequences, an export or a tokenizer",
            found=found,
            remedy="name one of them, or run `tokflow run` first",
        )
    )


def find_export(path: Path) -> Found:
    """Return the export at `path`; see `find_output`.

    Raises: MissingOutputError also where another output is there.
    """
    found = find_output(path)
    if found.manifest.stage != "export":
        raise MissingOutputError(
            four_parts(
                where=path,
                expected="an export",
                found=found.name,
                remedy="name a folder under <store>/<dataset>/exports",
            )
        )
    return found


def find_outputs(folder: Path) -> Iterator[Found]:
    """Yield the finished outputs below `folder`, sorted by stage and path.

    Folders of which the manifest cannot be read are not among them; `latest` links neither.
    """
    manifests = [path for path in folder.rglob(MANIFEST_NAME) if not _is_temporary(path, folder)]
    found = []
    for path in manifests:
        try:
            found.append(Found(path.parent, read_manifest(path.parent)))
        except (CorruptOutputError, TypeError):
            continue
    order = ("raw", "tokenizer", "tokens", "split", "sequences", "export")
    yield from sorted(
        (output for output in found if output.manifest.stage in order),
        key=lambda output: (order.index(output.manifest.stage), output.folder),
    )


def made_in(folder: Path) -> list[Path]:
    """Return the finished outputs in `folder`, which holds those of one stage and file, newest
    first."""
    if not folder.is_dir():
        return []
    paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
    made = [path for path in paths if not path.is_symlink() and is_complete(path)]
    return sorted(made, key=lambda path: (path / MANIFEST_NAME).stat().st_mtime_ns, reverse=True)


def newest_output(folder: Path) -> Path | None:
    """Return the finished output in `folder` that was made last; None where there is none."""
    return next(iter(made_in(folder)), None)


def find_tokenizer(dataset_folder: Path, fingerprint: str) -> Tokenizer | None:
    """Return the tokenizer with this fingerprint of its files; None where there is none."""
    folder = dataset_folder / "tokenizer"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if is_complete(path):
            manifest = read_manifest(path)
            if manifest.details["tokenizer_fingerprint"] == fingerprint:
                return tokenizer_of(manifest, path)
    return None


def _is_temporary(path: Path, folder: Path) -> bool:
    """Say whether the path leads through an unfinished folder or a link to a finished one."""
    inner = path.relative_to(folder).parts[:-1]
    return "latest" in inner[-1:] or any(
        name.startswith(".") and name.endswith(".tmp") for name in inner
    )

"""Outputs by their path, with what they were made from: for who has no dataset's config."""

from dataclasses import dataclass
from pathlib import Path

from tokflow.errors import CorruptOutputError, MissingOutputError
from tokflow.exports import Part, layout_of
from tokflow.exports.part import make_parts
from tokflow.sequences.packing import PackingConfig
from tokflow.sequences.segments import FileSequences, open_sequences
from tokflow.split.spans import Split, open_split
from tokflow.store.atomic import LATEST
from tokflow.store.manifest import MANIFEST_NAME, read_manifest
from tokflow.store.outputs import StoredOutput, Unreadable, look_at, made_in, walk
from tokflow.tokenizers.tokenizer import Tokenizer, tokenizer_of
from tokflow.tokens.shard import TokenShard, open_token_shard


@dataclass(frozen=True, slots=True)
class Found(StoredOutput):
    """A finished output in a store, its parents found by its manifest."""

    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer that made its tokens; None where the store does not have it, and of
        a raw file."""
        if self.manifest.stage == "raw":
            return None
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
            return open_token_shard(self)
        if self.manifest.stage == "sequences":
            return self.split().shard
        return self._made_from()[0].shard()

    def split(self) -> Split:
        """Return the split that this is, or is made from.

        Raises: MissingOutputError.
        """
        if self.manifest.stage == "split":
            return open_split(self, self.shard())
        return self._made_from()[0].split()

    def sequences(self) -> FileSequences:
        """Return the sequences that this is.

        Raises: MissingOutputError.
        """
        return open_sequences(self, self.split())

    def converted_from(self) -> "Found | None":
        """Return the export that `tokflow convert` made this one from; None of others.

        Raises: MissingOutputError where the store does not have it any more.
        """
        if not self.is_converted:
            return None
        fingerprint = self.manifest.parents["export"]
        for found in walk(self.dataset_folder / "exports"):
            if isinstance(found, StoredOutput) and found.manifest.fingerprint == fingerprint:
                return Found(found.folder, found.manifest)
        raise MissingOutputError(
            where=self.folder,
            expected=f"the export {fingerprint[:7]}, which it was converted from",
            found="none in the same store",
            remedy="keep both in one store",
        )

    def inputs(self) -> list["Found"]:
        """Return the outputs that this one is compared with: its parent and what that was made
        from, down to the token shard; of an export those of every file.

        Raises: MissingOutputError where the store does not have one of them any more;
        CorruptOutputError where a manifest cannot be read.
        """
        if (source := self.converted_from()) is not None:
            return [source]
        direct = self._made_from()
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
        parents = self._made_from()
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
        return self._parent(self._stage_of_parents, raw_file, raw_file).split()

    @property
    def _stage_of_parents(self) -> str:
        """The stage of what this is made from; empty where that is no output of a raw file."""
        if self.manifest.stage == "export":
            return "sequences" if layout_of(self.manifest).made_of == "sequences" else "split"
        return {"split": "tokens", "sequences": "split"}.get(self.manifest.stage, "")

    def _made_from(self) -> list["Found"]:
        """Return its parents in the store: of an export, one of each raw file."""
        stage, parents = self._stage_of_parents, self.manifest.parents
        if self.manifest.stage == "export":
            return [self._parent(stage, key, key) for key in sorted(parents)]
        return [self._parent(stage, str(self.manifest.partition), stage)] if stage else []

    def _parent(self, stage: str, key: str, name: str) -> "Found":
        """Return the output of a file that it is made from, `name` among its parents.

        Raises: MissingOutputError, CorruptOutputError.
        """
        fingerprint = self.manifest.parents[name]
        folder = self.dataset_folder / stage / key / fingerprint[:16]
        manifest = read_manifest(folder)
        if manifest.fingerprint != fingerprint:
            raise CorruptOutputError(
                where=folder,
                expected=f"the fingerprint {fingerprint}",
                found=manifest.fingerprint,
                remedy="run `tokflow run`, which makes it again if it is needed",
            )
        return Found(folder, manifest)


def find_output(path: Path) -> Found:
    """Return the output that `path` is, is a file of, leads to, or has as its only one.

    `path`: the folder, a link to it, a file in it, or a folder above it.

    Raises: MissingOutputError where nothing finished is there, CorruptOutputError,
    ForeignOutputError.
    """
    if (found := output_at(path)) is not None:
        return found
    below = [
        found for found in walk(path.resolve()) if isinstance(found, StoredOutput | Unreadable)
    ]
    if len(below) == 1:
        [only] = below
        if isinstance(only, Unreadable):
            raise only.error
        return Found(only.folder, only.manifest)
    if below:
        shown = below[0].folder.relative_to(path.resolve())
        found_there = f"a folder of {len(below):,} outputs such as {shown}"
    else:
        found_there = f"no {MANIFEST_NAME}" if path.exists() else "no such file or folder"
    raise MissingOutputError(
        where=path,
        expected="the folder of a token shard, a split, sequences, an export or a tokenizer",
        found=found_there,
        remedy="name one of them, or run `tokflow run` first",
    )


def output_at(path: Path) -> Found | None:
    """Return the output that `path` is, is a file of, or leads to; None where there is none.

    Raises: CorruptOutputError, ForeignOutputError.
    """
    resolved = path.resolve()
    for folder in (resolved, (resolved / LATEST).resolve(), *list(resolved.parents)[:3]):
        found = None if folder.name.startswith(".") else look_at(folder)
        if isinstance(found, Unreadable):
            raise found.error
        if found is not None:
            return Found(found.folder, found.manifest)
    return None


def find_export(path: Path) -> Found:
    """Return the export at `path`; see `find_output`.

    Raises: MissingOutputError also where another output is there.
    """
    found = find_output(path)
    if found.manifest.stage != "export":
        raise MissingOutputError(
            where=path,
            expected="an export",
            found=found.name,
            remedy="name a folder under <store>/<dataset>/exports",
        )
    return found


def find_tokenizer(dataset_folder: Path, fingerprint: str) -> Tokenizer | None:
    """Return the tokenizer with this fingerprint of its files; None where there is none."""
    for found in made_in(dataset_folder / "tokenizer"):
        if found.manifest.details["tokenizer_fingerprint"] == fingerprint:
            return tokenizer_of(found.manifest, found.folder)
    return None

"""Open outputs by path, and what they were made from, without the dataset's config."""

from pathlib import Path

from tokflow.errors import MissingOutputError
from tokflow.exports import Export, Part
from tokflow.exports.part import make_parts
from tokflow.sequences.packing import PackingConfig
from tokflow.sequences.segments import FileSequences, open_sequences
from tokflow.split.spans import Split, open_split
from tokflow.store.atomic import LATEST
from tokflow.store.manifest import MANIFEST_NAME, read_expected
from tokflow.store.stored_outputs import StoredOutput, Unreadable, look_at, made_in, walk
from tokflow.tokenizers.tokenizer import Tokenizer, tokenizer_of
from tokflow.tokens.shard import TokenShard, open_token_shard

OUTPUT = "the folder of a token shard, a split, sequences, an export or a tokenizer"


def find_output(path: Path, *, expected: str = OUTPUT) -> StoredOutput:
    """Return the output that `path` is, is a file of, leads to, or has as its only one.

    `path`: the folder, a link to it, a file in it, or a folder above it. `expected`: what a message
    says is to be named.

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
        return only
    if below:
        shown = below[0].folder.relative_to(path.resolve())
        found_there = f"a folder of {len(below):,} outputs such as {shown}"
    else:
        found_there = f"no {MANIFEST_NAME}" if path.exists() else "no such file or folder"
    raise MissingOutputError(
        where=path,
        expected=expected,
        found=found_there,
        remedy="name one of them, or run `tokflow run` first",
    )


def output_at(path: Path) -> StoredOutput | None:
    """Return the output that `path` is, is a file of, or leads to; None where there is none.

    Raises: CorruptOutputError, ForeignOutputError.
    """
    resolved = path.resolve()
    for folder in (resolved, (resolved / LATEST).resolve(), *list(resolved.parents)[:3]):
        found = None if folder.name.startswith(".") else look_at(folder)
        if isinstance(found, Unreadable):
            raise found.error
        if found is not None:
            return found
    return None


def find_export(path: Path) -> StoredOutput:
    """Return the export at `path`; see `find_output`.

    Raises: MissingOutputError also where another output is there.
    """
    found = find_output(path, expected="the folder of an export")
    if found.manifest.stage != "export":
        raise MissingOutputError(
            where=path,
            expected="the folder of an export",
            found=found.name,
            remedy="name one under <store>/<dataset>/exports",
        )
    return found


def open_stored_tokenizer(output: StoredOutput) -> Tokenizer | None:
    """Return the tokenizer that made the tokens of an output; None where the store does not have
    it, and of a raw file.

    Raises: MissingOutputError where the store does not have the token shard.
    """
    manifest = output.manifest
    if manifest.stage == "raw":
        return None
    if manifest.stage == "tokenizer":
        return tokenizer_of(manifest, output.folder)
    if manifest.stage == "export":
        fingerprint = manifest.details["tokenizer_fingerprint"]
    else:
        fingerprint = open_stored_shard(output).manifest.parents["tokenizer"]
    for found in made_in(output.dataset_folder / "tokenizer"):
        if found.manifest.details["tokenizer_fingerprint"] == fingerprint:
            return tokenizer_of(found.manifest, found.folder)
    return None


def open_stored_shard(output: StoredOutput) -> TokenShard:
    """Return the token shard that an output of one raw file is, or is made from.

    Raises: MissingOutputError.
    """
    if output.manifest.stage == "tokens":
        return open_token_shard(output)
    return open_stored_shard(parents_of(output)[0])


def open_stored_split(output: StoredOutput) -> Split:
    """Return the split that an output of one raw file is, or is made from.

    Raises: MissingOutputError.
    """
    if output.manifest.stage == "split":
        return open_split(output, open_stored_shard(output))
    return open_stored_split(parents_of(output)[0])


def open_stored_sequences(output: StoredOutput) -> FileSequences:
    """Return the sequences that an output is.

    Raises: MissingOutputError.
    """
    return open_sequences(output, open_stored_split(output))


def open_stored_parts(export: StoredOutput) -> list[Part]:
    """Return what an export is made from, in the order of its parts.

    Of a converted export: what the one is made from that it was converted from.

    Raises: MissingOutputError where the store does not have it any more, as where only the
    export was copied elsewhere.
    """
    if (source := source_of(export)) is not None:
        return open_stored_parts(source)
    details = export.manifest.details
    is_packed = _stage_of_parents(export) == "sequences"
    open_file = open_stored_sequences if is_packed else open_stored_split
    packing = PackingConfig(**export.manifest.config.get("packing", {}))
    files = [open_file(parent) for parent in parents_of(export)]
    return make_parts(details["parts"], details, files, packing)


def open_stored_split_of(export: StoredOutput, raw_file: str) -> Split:
    """Return the split of one raw file, among those that an export is made from.

    Raises: MissingOutputError, as `open_stored_parts`.
    """
    if (source := source_of(export)) is not None:
        return open_stored_split_of(source, raw_file)
    return open_stored_split(_parent(export, _stage_of_parents(export), raw_file, raw_file))


def source_of(export: StoredOutput) -> StoredOutput | None:
    """Return the export that `tokflow convert` made this one from; None of others.

    Raises: MissingOutputError where the store does not have it any more.
    """
    if not export.is_converted:
        return None
    fingerprint = export.manifest.parents["export"]
    for found in walk(export.dataset_folder / "exports"):
        if isinstance(found, StoredOutput) and found.manifest.fingerprint == fingerprint:
            return found
    raise MissingOutputError(
        where=export.folder,
        expected=f"the export {fingerprint[:7]}, which it was converted from",
        found="none in the same store",
        remedy="keep both in one store",
    )


def ancestors_of(output: StoredOutput) -> list[StoredOutput]:
    """Return the outputs that one is compared with: its parents and what these were made from,
    down to the token shards; of a converted export the one it was converted from.

    Raises: MissingOutputError where the store does not have one of them any more;
    CorruptOutputError where a manifest cannot be read.
    """
    if (source := source_of(output)) is not None:
        return [source]
    parents = parents_of(output)
    return [*parents, *(found for parent in parents for found in ancestors_of(parent))]


def parents_of(output: StoredOutput) -> list[StoredOutput]:
    """Return the split, sequences or token shards that an output is made from: of an export, one
    of each raw file.

    Raises: MissingOutputError, CorruptOutputError.
    """
    stage, manifest = _stage_of_parents(output), output.manifest
    if manifest.stage == "export":
        return [_parent(output, stage, key, key) for key in sorted(manifest.parents)]
    return [_parent(output, stage, str(manifest.partition), stage)] if stage else []


def _stage_of_parents(output: StoredOutput) -> str:
    """Return the stage of the parents; empty where these are no outputs of a raw file."""
    if output.manifest.stage == "export":
        is_packed = Export(output.folder, output.manifest).layout.is_packed
        return "sequences" if is_packed else "split"
    return {"split": "tokens", "sequences": "split"}.get(output.manifest.stage, "")


def _parent(output: StoredOutput, stage: str, key: str, name: str) -> StoredOutput:
    """Return the output of the raw file `key` that is called `name` among the parents."""
    fingerprint = output.manifest.parents[name]
    folder = output.dataset_folder / stage / key / fingerprint[:16]
    return StoredOutput(folder, read_expected(folder, stage, fingerprint))

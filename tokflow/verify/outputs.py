"""Verify whole outputs: one at a path, all below a folder, or all of a dataset."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tokflow.catalog import Found, find_output, find_outputs
from tokflow.convert import check_undamaged, own_packing, parts_of
from tokflow.dataset import Dataset
from tokflow.errors import MissingOutputError, TokflowError
from tokflow.exports import FORMATS, ExportConfig, options_of
from tokflow.lineage import Lineage, Output
from tokflow.manifest import is_complete, read_manifest
from tokflow.packing import PackingConfig
from tokflow.verify.export import verify_export
from tokflow.verify.problems import verify_files
from tokflow.verify.raw import verify_against_raw
from tokflow.verify.sequences import verify_sequences
from tokflow.verify.split import verify_split
from tokflow.verify.tokens import verify_tokenizer, verify_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """What was found of one output."""

    name: str
    """Such as `tokens of a.jsonl`."""
    folder: Path
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What could not be looked at, and why."""


def verify_path(path: Path) -> Iterator[Verified]:
    """Yield what is found of the output at `path`, or of every output below it.

    Raises: MissingOutputError where there is none.
    """
    try:
        found = [find_output(path)]
    except MissingOutputError:
        found = list(find_outputs(path.resolve())) if path.is_dir() else []
        if not found:
            raise
    for output in found:
        yield verify_found(output)


def verify_dataset(dataset: Dataset) -> Iterator[Verified]:
    """Yield what is found of every output that the dataset must have now.

    Token shards are compared with their raw files, too. An output that is not there is a problem.

    Raises: TokflowError where the raw files or the tokenizer cannot be found.
    """
    lineage = Lineage(dataset)
    lineage.read_raw_files(list(lineage.sources))
    yield _verify_output(lineage.tokenizer_output)
    if not lineage.tokenizer_output.is_made:
        return
    for key in lineage.sources:
        yield from _verify_file(lineage, key)
    for config in dataset.exports:
        yield _attempt(f"export {config.name}", partial(lineage.export, config))


def verify_found(found: Found) -> Verified:
    """Return what is wrong with one output: its files first, and if they are whole, the rest."""
    problems = verify_files(found.folder, found.manifest)
    notes: list[str] = []
    if problems:
        notes.append("what is in the files was not looked at")
    else:
        try:
            problems, notes = _verify_content(found)
        except (TokflowError, OSError, ValueError, KeyError, IndexError) as error:
            problems = [f"{found.folder}: cannot be read: {type(error).__name__}: {error}"]
    return Verified(
        name=found.name, folder=found.folder, problems=tuple(problems), notes=tuple(notes)
    )


def _verify_content(found: Found) -> tuple[list[str], list[str]]:
    """Return the problems and the notes of an output whose files are whole."""
    stage = found.manifest.stage
    if stage == "tokens":
        return verify_tokens(found.shard()), []
    if stage == "tokenizer":
        tokenizer = found.tokenizer()
        return ([] if tokenizer is None else verify_tokenizer(tokenizer)), []
    if stage == "raw":
        return [], []
    try:
        if stage == "split":
            return verify_split(found.split()), []
        if stage == "sequences":
            return verify_sequences(found.sequences()), []
        return _verify_export(found)
    except MissingOutputError:
        note = "what it was made from is not in this store: not compared with it"
        if stage == "export":
            return verify_export(found.folder, found.manifest), [note]
        return [], [note]


def _verify_export(found: Found) -> tuple[list[str], list[str]]:
    """Compare an export with what it was made from or, if it was converted, converted from.

    Raises: MissingOutputError where the store does not have that.
    """
    manifest = found.manifest
    name = manifest.details["format"]
    is_read = FORMATS[name].read is not None
    notes = [] if is_read else [f"{name} files are never read: compared by counts and checksums"]
    source = found.converted_from()
    if source is None:
        return verify_export(found.folder, manifest, found.parts()), notes
    check_undamaged(source)
    config = ExportConfig(format=name, name="", options=options_of(manifest))
    with TemporaryDirectory(prefix="tokflow.") as scratch:
        packing = own_packing(found) or PackingConfig()
        parts = parts_of(source, config, packing, scratch=Path(scratch))
        return verify_export(found.folder, manifest, parts), notes


def _verify_file(lineage: Lineage, key: str) -> Iterator[Verified]:
    """Yield the outputs of one raw file, the token shard compared with the file itself."""
    tokens = _attempt(f"tokens of {key}", lambda: lineage.tokens(key))
    if not tokens.problems:
        dataset = lineage.dataset
        try:
            problems = verify_against_raw(
                lineage.raw_file(key),
                lineage.open_tokens(key),
                dataset.documents,
                dataset.tokenizer,
                lineage.tokenizer,
            )
        except (TokflowError, OSError) as error:
            problems = [str(error)]
        tokens = Verified(name=tokens.name, folder=tokens.folder, problems=tuple(problems))
    yield tokens
    yield _attempt(f"split of {key}", lambda: lineage.split(key))
    yield _attempt(f"sequences of {key}", lambda: lineage.sequences(key))


def _attempt(name: str, output: Callable[[], Output]) -> Verified:
    """Verify an output whose very fingerprint may not be computable."""
    try:
        return _verify_output(output())
    except (TokflowError, OSError) as error:
        return Verified(name=name, folder=Path(), problems=(str(error),))


def _verify_output(output: Output) -> Verified:
    if not is_complete(output.folder):
        name = output.stage if output.stage == "tokenizer" else f"{output.stage} of {output.name}"
        return Verified(
            name=f"export {output.name}" if output.stage == "export" else name,
            folder=output.folder,
            problems=(f"{output.asset}: not built; run `tokflow run`",),
        )
    verified = verify_found(Found(output.folder, read_manifest(output.folder)))
    if output.fingerprint == read_manifest(output.folder).fingerprint:
        return verified
    problem = f"{output.folder}: expected the fingerprint {output.fingerprint[:16]}, found another"
    return Verified(name=verified.name, folder=output.folder, problems=(problem,))

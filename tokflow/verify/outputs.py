"""Verify whole outputs: one at a path, all below a folder, or all of a dataset."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tokflow.catalog import Found, find_output, output_at
from tokflow.convert import own_packing, parts_of
from tokflow.dataset import Dataset
from tokflow.errors import CorruptOutputError, ForeignOutputError, MissingOutputError, TokflowError
from tokflow.exports import FORMATS, ExportConfig, options_of
from tokflow.lineage import Lineage, Output
from tokflow.manifest import read_manifest
from tokflow.packing import PackingConfig
from tokflow.verify.export import verify_export
from tokflow.verify.problems import FileProblems
from tokflow.verify.raw import verify_against_raw
from tokflow.verify.sequences import verify_sequences
from tokflow.verify.split import verify_split
from tokflow.verify.tokens import verify_tokenizer, verify_tokens
from tokflow.walk import Finished, PassedBy, Unreadable, walk


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """What was found of one output."""

    name: str
    """Such as `tokens of a.jsonl`."""
    folder: Path
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What could not be looked at, and why."""
    is_output: bool = True
    """False of what lies in a store and is no output: it was not looked at."""


STAGES = ("raw", "tokenizer", "tokens", "split", "sequences", "export")


def verify_path(path: Path) -> Iterator[Verified]:
    """Yield what is found of the output at `path`, or of everything below it.

    Outputs come in the order of the stages, before them those that cannot be read, after them
    what is no output. What an output was made from is compared with it only if its own files are
    whole; else that is yielded, too, with what is wrong with it.

    Raises: MissingOutputError where there is no output.
    """
    try:
        at = output_at(path)
    except (TokflowError, OSError) as error:
        yield _unreadable(path, error)
        return
    files = FileProblems()
    if at is not None:
        yield _verify_found(at, files)
        yield from (_verify_found(parent, files) for parent in files.damaged() if parent != at)
        return
    below = sorted(walk(path.resolve()), key=_ordinal)
    if all(isinstance(found, PassedBy) for found in below):
        find_output(path)  # says what is there
    yielded = set()
    for found in below:
        yield _verify(found, files)
        yielded.add(found.path if isinstance(found, PassedBy) else found.folder)
    for parent in files.damaged():
        if parent.folder not in yielded:
            yield _verify_found(parent, files)


def _ordinal(found: Finished | Unreadable | PassedBy) -> int:
    """Return by what is sorted: what cannot be read, the stages in their order, the rest."""
    if isinstance(found, Finished):
        return 1 + STAGES.index(found.manifest.stage) if found.manifest.stage in STAGES else 0
    return 0 if isinstance(found, Unreadable) else 1 + len(STAGES)


def _verify(found: Finished | Unreadable | PassedBy, files: FileProblems) -> Verified:
    if isinstance(found, Finished):
        return _verify_found(Found(found.folder, found.manifest), files)
    if isinstance(found, Unreadable):
        return _unreadable(found.folder, found.error)
    reasons = (found.reason,)
    return Verified(
        name="not looked at", folder=found.path, problems=(), notes=reasons, is_output=False
    )


def _unreadable(folder: Path, error: Exception) -> Verified:
    return Verified(name="unreadable", folder=folder, problems=(str(error),))


def verify_dataset(dataset: Dataset) -> Iterator[Verified]:
    """Yield what is found of every output that the dataset must have now.

    Token shards are compared with their raw files, too. An output that is not there is a problem.

    Raises: TokflowError where the raw files or the tokenizer cannot be found.
    """
    lineage = Lineage(dataset)
    files = FileProblems()
    yield from _verify_copies(lineage, files)
    lineage.read_raw_files(list(lineage.sources))
    yield _attempt("tokenizer", lambda: lineage.tokenizer_output, files)
    if not _is_made(lineage.tokenizer_output):
        return
    for key in lineage.sources:
        yield from _verify_file(lineage, key, files)
    for config in dataset.exports:
        yield _attempt(f"export {config.name}", partial(lineage.export, config), files)


def _verify_found(found: Found, files: FileProblems) -> Verified:
    """Return what is wrong with one output: its files first, and if they are whole, the rest."""
    problems = [*files.of(found)]
    if found.is_misplaced:
        problems.append(
            f"{found.folder}: expected to be where a run looks for it, found in a folder that its "
            f"manifest does not lead to: {found.manifest.fingerprint[:16]} of {found.name}"
        )
    notes: list[str] = []
    if problems:
        notes.append("what is in the files was not looked at")
    else:
        try:
            problems, notes = _verify_content(found, files)
        except (TokflowError, OSError, ValueError, KeyError, IndexError) as error:
            problems = [f"{found.folder}: cannot be read: {type(error).__name__}: {error}"]
    return Verified(
        name=found.name, folder=found.folder, problems=tuple(problems), notes=tuple(notes)
    )


def _verify_content(found: Found, files: FileProblems) -> tuple[list[str], list[str]]:
    """Return the problems and the notes of an output whose files are whole."""
    stage = found.manifest.stage
    if stage == "tokens":
        return verify_tokens(found.shard()), []
    if stage == "tokenizer":
        tokenizer = found.tokenizer()
        return ([] if tokenizer is None else verify_tokenizer(tokenizer)), []
    if stage == "raw":
        return [], []
    if reason := _why_not_compared(found, files):
        is_export = stage == "export"
        problems = verify_export(found.folder, found.manifest) if is_export else []
        return problems, [f"{reason}: not compared with it"]
    if stage == "split":
        return verify_split(found.split()), []
    if stage == "sequences":
        return verify_sequences(found.sequences()), []
    return _verify_export(found)


def _why_not_compared(found: Found, files: FileProblems) -> str | None:
    """Return why an output cannot be compared with what it was made from; None if it can."""
    try:
        damaged = [parent for parent in found.inputs() if files.of(parent)]
    except MissingOutputError:
        return "what it was made from is not in this store"
    except (CorruptOutputError, ForeignOutputError) as error:
        return f"what it was made from cannot be read ({str(error).partition(': ')[0]})"
    if not damaged:
        return None
    more = f" and {len(damaged) - 1:,} more" if len(damaged) > 1 else ""
    return f"what it was made from is damaged ({damaged[0].name}{more})"


def _verify_export(found: Found) -> tuple[list[str], list[str]]:
    """Compare an export with what it was made from or, if it was converted, converted from."""
    manifest = found.manifest
    name = manifest.details["format"]
    is_read = FORMATS[name].read is not None
    notes = [] if is_read else [f"{name} files are never read: compared by counts and checksums"]
    source = found.converted_from()
    if source is None:
        return verify_export(found.folder, manifest, found.parts()), notes
    config = ExportConfig(format=name, name="", options=options_of(manifest))
    with parts_of(source, config, own_packing(found) or PackingConfig()) as parts:
        return verify_export(found.folder, manifest, parts), notes


def _verify_file(lineage: Lineage, key: str, files: FileProblems) -> Iterator[Verified]:
    """Yield the outputs of one raw file, the token shard compared with the file itself."""
    tokens = _attempt(f"tokens of {key}", lambda: lineage.tokens(key), files)
    yield tokens if tokens.problems else _compare_with_raw(tokens, lineage, key, files)
    yield _attempt(f"split of {key}", lambda: lineage.split(key), files)
    yield _attempt(f"sequences of {key}", lambda: lineage.sequences(key), files)


def _is_made(output: Output) -> bool:
    try:
        return output.is_made
    except ForeignOutputError:
        return False


def _verify_copies(lineage: Lineage, files: FileProblems) -> Iterator[Verified]:
    """Yield the copies of raw files that were fetched, before a damaged one is fetched anew."""
    for found in walk(lineage.dataset.folder / "raw"):
        if isinstance(found, Unreadable) or (
            isinstance(found, Finished) and found.manifest.partition in lineage.sources
        ):
            yield _verify(found, files)


def _compare_with_raw(
    tokens: Verified, lineage: Lineage, key: str, files: FileProblems
) -> Verified:
    """Return what is found of a token shard, of which the rest is well, in its raw file."""
    tokenizer = lineage.tokenizer_output
    if files.of(Found(tokenizer.folder, tokenizer.manifest())):
        return replace(tokens, notes=("its tokenizer is damaged: not compared with the raw file",))
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
    return replace(tokens, problems=tuple(problems))


def _attempt(name: str, output: Callable[[], Output], files: FileProblems) -> Verified:
    """Verify an output whose very fingerprint may not be computable."""
    try:
        return _verify_output(output(), files)
    except (TokflowError, OSError) as error:
        return Verified(name=name, folder=Path(), problems=(str(error),))


def _verify_output(output: Output, files: FileProblems) -> Verified:
    try:
        manifest = read_manifest(output.folder)
    except MissingOutputError:
        problem = f"{output.asset}: not built; run `tokflow run`"
    except (TokflowError, OSError) as error:
        problem = str(error)
    else:
        if manifest.fingerprint == output.fingerprint:
            return _verify_found(Found(output.folder, manifest), files)
        problem = (
            f"{output.folder}: expected the fingerprint {output.fingerprint[:16]}, found another"
        )
    return Verified(name=output.title, folder=output.folder, problems=(problem,))

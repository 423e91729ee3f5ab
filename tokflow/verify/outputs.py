"""Verify whole outputs: one at a path, all below a folder, or all of a dataset."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tokflow.catalog import Found, find_output, find_outputs
from tokflow.convert import own_packing, parts_of
from tokflow.dataset import Dataset
from tokflow.errors import MissingOutputError, TokflowError, four_parts
from tokflow.exports import FORMATS, ExportConfig, options_of
from tokflow.lineage import Lineage, Output
from tokflow.manifest import is_complete, read_manifest
from tokflow.packing import PackingConfig
from tokflow.raw.hashes import CACHE_NAME
from tokflow.verdicts import write_verdict
from tokflow.verify.export import verify_export
from tokflow.verify.problems import Damage, unlisted_files
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

    What they were made from is compared only if its own files are whole; else it is yielded, too,
    with what is wrong with it.

    Raises: MissingOutputError where there is none.
    """
    try:
        found = [find_output(path)]
    except MissingOutputError:
        found = list(find_outputs(path.resolve())) if path.is_dir() else []
        if not found:
            raise
    damage = Damage()
    for output in found:
        yield _verify_found(output, damage)
    yielded = {output.folder for output in found}
    for parent in damage.outputs():
        if parent.folder not in yielded:
            yield _verify_found(parent, damage)


def verify_dataset(dataset: Dataset) -> Iterator[Verified]:
    """Yield what is found of every output that the dataset must have now.

    Raw files are hashed, whatever is remembered of them, and token shards compared with them. An
    output that is not there is a problem, and so is a wrong sha256 in the cache of checksums, which
    is put right. Tokens of gigatoken that are not the reference's are kept as a verdict, so that
    the next run makes all tokens of that tokenizer again.

    Raises: TokflowError where the raw files or the tokenizer cannot be found.
    """
    lineage = Lineage(dataset, rehash=True)
    lineage.read_raw_files(list(lineage.sources))
    damage = Damage()
    yield _verify_output(lineage.tokenizer_output, damage)
    if not lineage.tokenizer_output.is_made:
        return
    for key in lineage.sources:
        yield from _verify_file(lineage, key, damage)
    for config in dataset.exports:
        yield _attempt(f"export {config.name}", partial(lineage.export, config), damage)


def _verify_found(found: Found, damage: Damage) -> Verified:
    """Return what is wrong with one output: its files first, and if they are whole, the rest."""
    problems = [*damage.of(found), *unlisted_files(found.folder, found.manifest)]
    notes: list[str] = []
    if problems:
        notes.append("what is in the files was not looked at")
    else:
        try:
            problems, notes = _verify_content(found, damage)
        except TokflowError as error:
            problems = [str(error)]
        except (OSError, ValueError, KeyError, IndexError) as error:
            problems = [f"{found.folder}: cannot be read: {type(error).__name__}: {error}"]
    return Verified(
        name=found.name, folder=found.folder, problems=tuple(problems), notes=tuple(notes)
    )


def _verify_content(found: Found, damage: Damage) -> tuple[list[str], list[str]]:
    """Return the problems and the notes of an output whose files are whole."""
    stage = found.manifest.stage
    if stage == "tokens":
        return verify_tokens(found.shard()), []
    if stage == "tokenizer":
        tokenizer = found.tokenizer()
        return ([] if tokenizer is None else verify_tokenizer(tokenizer)), []
    if stage == "raw":
        return [], []
    if reason := _why_not_compared(found, damage):
        is_export = stage == "export"
        problems = verify_export(found.folder, found.manifest) if is_export else []
        return problems, [f"{reason}: not compared with it"]
    if stage == "split":
        return verify_split(found.split()), []
    if stage == "sequences":
        return verify_sequences(found.sequences()), []
    return _verify_export(found)


def _why_not_compared(found: Found, damage: Damage) -> str | None:
    """Return why an output cannot be compared with what it was made from; None if it can."""
    try:
        damaged = [parent for parent in found.inputs() if damage.of(parent)]
    except MissingOutputError:
        return "what it was made from is not in this store"
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
    with TemporaryDirectory(prefix="tokflow.") as scratch:
        packing = own_packing(found) or PackingConfig()
        parts = parts_of(source, config, packing, scratch=Path(scratch))
        return verify_export(found.folder, manifest, parts), notes


def _verify_file(lineage: Lineage, key: str, damage: Damage) -> Iterator[Verified]:
    """Yield the outputs of one raw file, the token shard compared with the file itself."""
    yield from _verify_remembered(lineage, key)
    tokens = _attempt(f"tokens of {key}", lambda: lineage.tokens(key), damage)
    yield tokens if tokens.problems else _compare_with_raw(tokens, lineage, key, damage)
    yield _attempt(f"split of {key}", lambda: lineage.split(key), damage)
    yield _attempt(f"sequences of {key}", lambda: lineage.sequences(key), damage)


def _verify_remembered(lineage: Lineage, key: str) -> Iterator[Verified]:
    """Yield what is wrong in the cache of checksums with that of a raw file."""
    try:
        raw = lineage.raw_file(key)
    except (TokflowError, OSError):
        return  # said of its outputs
    if raw.remembered is None:
        return
    cache = lineage.dataset.folder / CACHE_NAME
    problem = four_parts(
        where=cache,
        expected=f"sha256 {raw.sha256[:16]}… of {raw.path}, as the file is now",
        found=f"{raw.remembered[:16]}… for a file of its size and times",
        remedy="the cache is right again; if it was the file that changed, restore it, else run "
        "`tokflow run` to build what is missing",
    )
    yield Verified(name=f"raw file {key}", folder=cache.parent, problems=(problem,))


def _compare_with_raw(tokens: Verified, lineage: Lineage, key: str, damage: Damage) -> Verified:
    """Return what is found of a token shard, of which the rest is well, in its raw file."""
    if damage.of(_found(lineage.tokenizer_output)):
        return replace(tokens, notes=("its tokenizer is damaged: not compared with the raw file",))
    dataset = lineage.dataset
    notes = ["its raw file was hashed"]

    def disqualify(difference: str) -> None:
        with suppress(OSError):  # a store that cannot be written to cannot be mended either
            write_verdict(lineage.tokenizer.folder, lineage.tokenizer.fingerprint, difference)
        notes.append("gigatoken made it; `tokflow run` makes all of them with the reference")

    try:
        problems = verify_against_raw(
            lineage.raw_file(key),
            lineage.open_tokens(key),
            dataset.documents,
            dataset.tokenizer,
            lineage.tokenizer,
            on_difference=disqualify,
        )
    except (TokflowError, OSError) as error:
        problems = [str(error)]
    return replace(tokens, problems=tuple(problems), notes=tuple(notes))


def _attempt(name: str, output: Callable[[], Output], damage: Damage) -> Verified:
    """Verify an output whose very fingerprint may not be computable."""
    try:
        return _verify_output(output(), damage)
    except (TokflowError, OSError) as error:
        return Verified(name=name, folder=Path(), problems=(str(error),))


def _verify_output(output: Output, damage: Damage) -> Verified:
    if not is_complete(output.folder):
        name = output.stage if output.stage == "tokenizer" else f"{output.stage} of {output.name}"
        return Verified(
            name=f"export {output.name}" if output.stage == "export" else name,
            folder=output.folder,
            problems=(f"{output.asset}: not built; run `tokflow run`",),
        )
    found = _found(output)
    verified = _verify_found(found, damage)
    if output.fingerprint == found.manifest.fingerprint:
        return verified
    problem = f"{output.folder}: expected the fingerprint {output.fingerprint[:16]}, found another"
    return replace(verified, problems=(problem,), notes=())


def _found(output: Output) -> Found:
    return Found(output.folder, read_manifest(output.folder))

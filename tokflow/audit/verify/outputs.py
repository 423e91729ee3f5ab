"""Verify whole outputs: one at a path, all below a folder, or all of a dataset."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

from tokflow.audit.convert import own_packing, parts_of
from tokflow.audit.stored import Found, find_output, output_at
from tokflow.audit.verify.export import verify_export
from tokflow.audit.verify.problems import Damage, unlisted_files
from tokflow.audit.verify.raw import verify_against_raw
from tokflow.audit.verify.sequences import verify_sequences
from tokflow.audit.verify.split import verify_split
from tokflow.audit.verify.tokens import verify_tokenizer, verify_tokens
from tokflow.build.dataset import Dataset
from tokflow.build.graph import STAGES, BuildGraph, Output
from tokflow.errors import (
    CorruptOutputError,
    ForeignOutputError,
    MissingOutputError,
    TokflowError,
    UntrustedCodeError,
    message_of,
)
from tokflow.exports import FORMATS, ExportConfig, options_of
from tokflow.raw.hashes import CACHE_NAME
from tokflow.sequences.packing import PackingConfig
from tokflow.store.atomic import LATEST
from tokflow.store.manifest import is_output_name, read_manifest, read_run
from tokflow.store.outputs import STAGE_FOLDERS, PassedBy, StoredOutput, Unreadable, walk
from tokflow.store.verdicts import try_to_write_verdict
from tokflow.tokenizers.tokenizer import tokenizer_of


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


def verify_path(path: Path, *, trust_remote_code: bool = False) -> Iterator[Verified]:
    """Yield what is found of the output at `path`, or of everything below it.

    Outputs come in the order of the stages, before them those that cannot be read, after them
    what is no output. What an output was made from is compared with it only if its own files are
    whole; else that is yielded, too, with what is wrong with it. A tokenizer that is Python code
    is loaded only with `trust_remote_code`.

    Raises: MissingOutputError where there is no output.
    """
    try:
        at = output_at(path)
    except (TokflowError, OSError) as error:
        yield _unreadable(path, error)
        return
    damage = Damage()
    if at is not None:
        yield _verify_found(at, damage, trust_remote_code=trust_remote_code)
        for reason in damage.unreadable:
            problems = (message_of(reason, where=at.folder),)
            yield Verified(name="what it was made from", folder=at.folder, problems=problems)
        yield from (_verify_found(parent, damage) for parent in damage.outputs() if parent != at)
        return
    below = sorted(walk(path.resolve()), key=_ordinal)
    if all(isinstance(found, PassedBy) for found in below):
        find_output(path)  # says what is there
    yielded = set()
    for found in below:
        yield _verify(found, damage, trust_remote_code=trust_remote_code)
        yielded.add(found.path if isinstance(found, PassedBy) else found.folder)
    for parent in damage.outputs():
        if parent.folder not in yielded:
            yield _verify_found(parent, damage)


def _ordinal(found: StoredOutput | Unreadable | PassedBy) -> int:
    """Return by what is sorted: what cannot be read, the stages in their order, the rest."""
    if isinstance(found, StoredOutput):
        return 1 + STAGES.index(found.manifest.stage) if found.manifest.stage in STAGES else 0
    return 0 if isinstance(found, Unreadable) else 1 + len(STAGES)


def _verify(
    found: StoredOutput | Unreadable | PassedBy, damage: Damage, *, trust_remote_code: bool
) -> Verified:
    if isinstance(found, StoredOutput):
        output = Found(found.folder, found.manifest)
        return _verify_found(output, damage, trust_remote_code=trust_remote_code)
    if isinstance(found, Unreadable):
        return _unreadable(found.folder, found.error)
    reasons = (found.reason,)
    return Verified(
        name="not looked at", folder=found.path, problems=(), notes=reasons, is_output=False
    )


def _unreadable(folder: Path, error: Exception) -> Verified:
    problem = message_of(error, where=folder)
    return Verified(name=_name_at(folder), folder=folder, problems=(problem,))


def _name_at(folder: Path) -> str:
    """Return what lies in a folder of a store by its path; `unreadable` outside of any."""
    for stage in reversed(folder.absolute().parents):
        if stage.name in ("raw", *STAGE_FOLDERS) and (stage.parent / "tokenizer").is_dir():
            inside = folder.absolute().relative_to(stage).parts
            key = "/".join(
                takewhile(lambda part: part != LATEST and not is_output_name(part), inside)
            )
            if stage.name == "exports":
                return f"export {key}"
            return f"{stage.name} of {key}" if key else stage.name
    return "unreadable"


def verify_dataset(dataset: Dataset) -> Iterator[Verified]:
    """Yield what is found of every output that the dataset must have now.

    Raw files are hashed, whatever is remembered of them, and token shards compared with them. An
    output that is not there is a problem, and so is a wrong sha256 in the cache of checksums, which
    is put right. Tokens of gigatoken that are not the reference's are kept as a verdict, so that
    the next run makes all tokens of that tokenizer again.

    Raises: TokflowError where the raw files or the tokenizer cannot be found.
    """
    graph = BuildGraph(dataset, rehash=True)
    damage = Damage()
    trust = dataset.tokenizer.trust_remote_code
    yield from _verify_copies(graph, damage)
    graph.read_raw_files(list(graph.sources))
    yield _attempt("tokenizer", lambda: graph.tokenizer_output, damage, trust_remote_code=trust)
    if not _is_made(graph.tokenizer_output):
        return
    for key in graph.sources:
        yield from _verify_file(graph, key, damage)
    for config in dataset.exports:
        yield _attempt(f"export {config.name}", partial(graph.export, config), damage)


def _verify_found(found: Found, damage: Damage, *, trust_remote_code: bool = False) -> Verified:
    """Return what is wrong with one output: its files first, and if they are whole, the rest."""
    problems = [*damage.of(found), *unlisted_files(found.folder, found.manifest)]
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
            problems, notes = _verify_content(found, damage, trust_remote_code=trust_remote_code)
        except TokflowError as error:
            problems = [str(error)]
        except Exception as error:  # whatever it is, the other outputs are looked at
            problems = [f"{found.folder}: cannot be read: {type(error).__name__}: {error}"]
    return Verified(
        name=found.name, folder=found.folder, problems=tuple(problems), notes=tuple(notes)
    )


def _verify_content(
    found: Found, damage: Damage, *, trust_remote_code: bool
) -> tuple[list[str], list[str]]:
    """Return the problems and the notes of an output whose files are whole."""
    stage = found.manifest.stage
    if stage == "tokens":
        return verify_tokens(found.shard()), _notes_on_tokenizer(found)
    if stage == "tokenizer":
        return _verify_tokenizer(found, trust_remote_code=trust_remote_code)
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
    except (CorruptOutputError, ForeignOutputError) as error:
        damage.unreadable.append(error)
        return f"what it was made from cannot be read ({str(error).partition(': ')[0]})"
    if not damaged:
        return None
    more = f" and {len(damaged) - 1:,} more" if len(damaged) > 1 else ""
    return f"what it was made from is damaged ({damaged[0].name}{more})"


def _notes_on_tokenizer(found: Found) -> list[str]:
    """Return what is to be said of a shard whose tokenizer is gone, or with which gigatoken, that
    made the shard, was found wrong since."""
    tokenizer = found.tokenizer()
    if tokenizer is None:
        return ["its tokenizer is not in this store"]
    if tokenizer.verdict is None or read_run(found.folder).get("engine") != "gigatoken":
        return []
    return ["gigatoken made it, and was found wrong with its tokenizer: no run uses it"]


def _verify_tokenizer(found: Found, *, trust_remote_code: bool) -> tuple[list[str], list[str]]:
    tokenizer = tokenizer_of(found.manifest, found.folder, trust_remote_code=trust_remote_code)
    try:
        return verify_tokenizer(tokenizer), []
    except UntrustedCodeError as error:
        return [], [f"it was not loaded: {error}"]


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


def _verify_file(graph: BuildGraph, key: str, damage: Damage) -> Iterator[Verified]:
    """Yield the outputs of one raw file, the token shard compared with the file itself."""
    yield from _verify_remembered(graph, key)
    tokens = _attempt(f"tokens of {key}", lambda: graph.tokens(key), damage)
    yield tokens if tokens.problems else _compare_with_raw(tokens, graph, key, damage)
    yield _attempt(f"split of {key}", lambda: graph.split(key), damage)
    yield _attempt(f"sequences of {key}", lambda: graph.sequences(key), damage)


def _is_made(output: Output) -> bool:
    try:
        return output.is_made
    except ForeignOutputError:
        return False


def _verify_copies(graph: BuildGraph, damage: Damage) -> Iterator[Verified]:
    """Yield the copies of raw files that were fetched, before a damaged one is fetched anew."""
    for found in walk(graph.dataset.folder / "raw"):
        if isinstance(found, Unreadable) or (
            isinstance(found, StoredOutput) and found.manifest.partition in graph.sources
        ):
            yield _verify(found, damage, trust_remote_code=False)


def _verify_remembered(graph: BuildGraph, key: str) -> Iterator[Verified]:
    """Yield what is wrong in the cache of checksums with that of a raw file."""
    try:
        raw = graph.raw_file(key)
    except (TokflowError, OSError):
        return  # said of its outputs
    if raw.remembered is None:
        return
    cache = graph.dataset.folder / CACHE_NAME
    problem = TokflowError(
        where=cache,
        expected=f"sha256 {raw.sha256[:16]}… of {raw.path}, as the file is now",
        found=f"{raw.remembered[:16]}… for a file of its size and times",
        remedy="the cache is right again; if it was the file that changed, restore it, else run "
        "`tokflow run` to build what is missing",
    )
    yield Verified(name=f"raw file {key}", folder=cache.parent, problems=(str(problem),))


def _compare_with_raw(tokens: Verified, graph: BuildGraph, key: str, damage: Damage) -> Verified:
    """Return what is found of a token shard, of which the rest is well, in its raw file."""
    tokenizer = graph.tokenizer_output
    if damage.of(Found(tokenizer.folder, tokenizer.manifest())):
        return replace(tokens, notes=("its tokenizer is damaged: not compared with the raw file",))
    dataset = graph.dataset
    notes = ["its raw file was hashed"]

    def disqualify(difference: str) -> None:
        try_to_write_verdict(graph.tokenizer.folder, graph.tokenizer.fingerprint, difference)
        notes.append("gigatoken made it; `tokflow run` makes all of them with the reference")

    try:
        problems = verify_against_raw(
            graph.raw_file(key),
            graph.open_tokens(key),
            dataset.documents,
            graph.encoding,
            on_difference=disqualify,
        )
    except (TokflowError, OSError) as error:
        problems = [message_of(error, where=tokens.folder)]
    return replace(tokens, problems=tuple(problems), notes=tuple(notes))


def _attempt(
    name: str, output: Callable[[], Output], damage: Damage, *, trust_remote_code: bool = False
) -> Verified:
    """Verify an output whose very fingerprint may not be computable."""
    try:
        return _verify_output(output(), damage, trust_remote_code=trust_remote_code)
    except (TokflowError, OSError) as error:
        return Verified(name=name, folder=Path(), problems=(message_of(error, where=name),))


def _verify_output(output: Output, damage: Damage, *, trust_remote_code: bool) -> Verified:
    try:
        manifest = read_manifest(output.folder)
    except MissingOutputError:
        problem = f"{output.asset}: not built; run `tokflow run`"
    except (TokflowError, OSError) as error:
        problem = message_of(error, where=output.folder)
    else:
        if manifest.fingerprint == output.fingerprint:
            found = Found(output.folder, manifest)
            return _verify_found(found, damage, trust_remote_code=trust_remote_code)
        problem = (
            f"{output.folder}: expected the fingerprint {output.fingerprint[:16]}, found another"
        )
    return Verified(name=output.title, folder=output.folder, problems=(problem,))

"""What is wrong with outputs: their files first, then their content, by several processes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from tokflow.audit.ancestry import Ancestry, dataset_folder_of, place_of, with_links
from tokflow.audit.verify.export import verify_beside, verify_export
from tokflow.audit.verify.remade import (
    NUM_SAMPLES,
    verify_against_raw,
    verify_made_again,
    verify_mixed_split,
    verify_sequences,
    verify_split,
)
from tokflow.audit.verify.tokens import verify_tokenizer, verify_tokens
from tokflow.errors import (
    CorruptOutputError,
    ForeignOutputError,
    MissingOutputError,
    TokflowError,
    UntrustedCodeError,
    message_of,
)
from tokflow.exports import Export
from tokflow.exports.reading import is_export
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.output import Output
from tokflow.pools import SMALL_BYTES, open_pool
from tokflow.pools.pool import Advance, InProcess
from tokflow.raw import RawPartition
from tokflow.sequences.segments import SEQUENCES_VERSION, FileSequences
from tokflow.sequences.stage import SEQUENCES
from tokflow.split import CUT_TOKENS_NAME, SPLIT_VERSION, Split
from tokflow.split.stage import SPLIT, cut_encoder
from tokflow.stage import RAW, Stage
from tokflow.store.engine_verdicts import try_to_write_verdict
from tokflow.store.store import Store, StoredOutput
from tokflow.store.stored_outputs import Unreadable
from tokflow.store.versions import changed_since
from tokflow.tokenizers.stage import TOKENIZER
from tokflow.tokenizers.tokenizer import Encoding, tokenizer_of
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.stage import TOKENS

NOT_COMPARED = "not compared with it"

VERSIONS = {SPLIT.name: SPLIT_VERSION, SEQUENCES.name: SEQUENCES_VERSION}
"""Versions of the stages whose outputs are made again and compared."""

T = TypeVar("T")

Result: TypeAlias = tuple[list[str], list[str]]
"""Problems, and notes."""

Check: TypeAlias = Callable[[], Result]
"""What is left to be compared of an output, in this process or another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """The problems of one output."""

    name: str
    """Such as `tokens of a.jsonl`."""
    folder: Path
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Checks that could not be made, and why."""
    num_bytes: int = 0
    """Size of its files, all of which were compared with their checksums."""


def unreadable(folder: Path, error: Exception) -> Verification:
    """Return what is said of an output that cannot be opened."""
    problem = message_of(error, where=folder)
    return Verification(name="unreadable output", folder=folder, problems=(problem,))


def _shown(found: StoredOutput) -> str:
    """Return what messages call an output, of an export its format, too."""
    format_ = found.manifest.details.get("format")
    return found.name if format_ in (None, found.export_name) else f"{found.name} ({format_})"


def _compared(task: tuple[int, Verification, Check | None], advance: Advance) -> Result:
    """Return what is found by the check of a task of a pool."""
    _, _, check = task
    return ([], []) if check is None else check()


def _problems(notes: list[str], verify: Callable[..., list[str]], *of: Any) -> Result:
    """Return what `verify` finds wrong, and notes where that is nothing."""
    return verify(*of), notes


def _compared_with_raw(
    raw: RawPartition, shard: TokenShard, documents: Any, encoding: Encoding, **options: Any
) -> Result:
    """Compare a token shard with its counts, then with its raw file."""
    if problems := verify_tokens(shard):
        return problems, []
    notes = [f"its raw file was {'read' if raw.files[0].remote else 'hashed'}"]

    def disqualify(difference: str) -> None:
        try_to_write_verdict(encoding.tokenizer, difference)
        notes.append("gigatoken made it; `tokflow run` makes all of them with the reference")

    options["on_difference"] = disqualify
    return verify_against_raw(raw, shard, documents, encoding, **options), notes


def _with(begun: Verification, found: Result | Exception) -> Verification:
    """Return what was begun with what a check has found, or an error in place of that."""
    problems, notes = found if isinstance(found, tuple) else ([], [])
    if isinstance(found, UntrustedCodeError):
        notes = [f"it was not checked: {found}"]
    elif isinstance(found, TokflowError | OSError):
        problems = [message_of(found, where=begun.folder)]
    elif isinstance(found, Exception):
        problems = [f"{begun.folder}: cannot be read: {type(found).__name__}: {found}"]
    return replace(begun, problems=(*begun.problems, *problems), notes=(*notes, *begun.notes))


def _stored(item: object) -> StoredOutput | None:
    """Return the output that is there; None where there is none, or none that can be read."""
    if isinstance(item, Output):
        with suppress(TokflowError, OSError):
            return item.stored
    return item if isinstance(item, StoredOutput) else None


class Verifier:
    """Verifies outputs, the files of each read once; with a graph, raw files are compared too."""

    def __init__(
        self,
        store: Store,
        stages: tuple[Stage, ...],
        jobs: int | None,
        *,
        trust_remote_code: bool,
        graph: BuildGraph | None = None,
        all_documents: bool = False,
    ) -> None:
        self._store, self._trust, self._all = store, trust_remote_code, all_documents
        self._graph, self._jobs = graph, jobs
        self._ancestry = Ancestry(stages)
        self._verified: set[Path] = set()
        self._broken: dict[Path, tuple[StoredOutput, list[str]]] = {}
        self.unreadable_parents: list[TokflowError] = []
        """Errors of parents that could not be read."""

    def verify_all(
        self, items: Sequence[Output | StoredOutput | Unreadable]
    ) -> Iterator[Verification]:
        """Yield what is wrong with outputs, in their order: those that a dataset must have, or what
        is found in a store. Large ones are compared by several processes."""
        num_bytes = sum(of.manifest.num_bytes for of in map(_stored, items) if of is not None)
        pool = InProcess() if num_bytes <= SMALL_BYTES else open_pool(self._jobs, "local")
        begun = (self._begin(of) for of in self._ahead(iter(items)))
        numbered = ((number, *of) for number, of in enumerate(begun))
        done: dict[int, Verification] = {}
        num_yielded = 0
        with pool:
            for (number, verification, _), result in pool.map(_compared, numbered):
                done[number] = _with(verification, result)
                while num_yielded in done:
                    yield done.pop(num_yielded)
                    num_yielded += 1

    def verify_any(self, item: Output | StoredOutput | Unreadable) -> Verification:
        """Return what is wrong with one output."""
        [verification] = self.verify_all([item])
        return verification

    def _begin(self, item: Output | StoredOutput | Unreadable) -> tuple[Verification, Check | None]:
        """Return what is known of an output by its files, and what is left to be compared."""
        if isinstance(item, StoredOutput):
            return self._begin_stored(item)
        if isinstance(item, Unreadable):
            return unreadable(item.folder, item.error), None
        folder = Path()
        try:
            folder = item.folder
            verification, check = self._begin_stored(item.stored, item)
        except (TokflowError, OSError) as error:
            problem = message_of(error, where=item.title)
            if isinstance(error, MissingOutputError) and folder != Path():
                problem = f"{item.asset}: not built; run `tokflow run`"
            return Verification(name=item.title, folder=folder, problems=(problem,)), None
        return replace(verification, name=item.title), check

    def damaged_parents(self) -> Iterator[Verification]:
        """Yield the damaged parents that were not verified themselves."""
        damaged = [output for output, problems in self._broken.values() if problems]
        yield from (self.verify_any(one) for one in damaged if one.folder not in self._verified)

    def _begin_stored(
        self, found: StoredOutput, expected: Output | None = None
    ) -> tuple[Verification, Check | None]:
        """Return what is wrong with the files of an output and, if they are whole, what the rest is
        to be compared by. `expected`: the output of its dataset, where that is known."""
        self._verified.add(found.folder)
        self._ancestry.add(found)
        problems = [*self._broken_files(found)]
        unlisted = found.store.unlisted(found)
        problems += [f"{found.folder / of}: expected no file, found one" for of in unlisted]
        problems += verify_beside(found)
        dataset = dataset_folder_of(found)
        is_placed = found.folder == dataset / place_of(found)
        if (dataset / TOKENIZER.path).is_dir() and not is_placed:
            problems.append(
                f"{found.folder}: expected to be where a run looks for it, found in a folder that "
                f"its manifest does not lead to: {found.manifest.recipe.fingerprint[:16]} "
                f"of {found.name}"
            )
        begun = Verification(
            name=_shown(found),
            folder=found.folder,
            problems=tuple(problems),
            notes=tuple(changed_since([found.run().get("versions", {})])),
            num_bytes=found.manifest.num_bytes,
        )
        if problems:
            return _with(begun, ([], ["the content of the files was not checked"])), None
        try:
            content = self._content(found, expected)
        except Exception as error:  # whatever it is, the other outputs are looked at
            return _with(begun, error), None
        return (_with(begun, content), None) if isinstance(content, tuple) else (begun, content)

    def _broken_files(self, *outputs: StoredOutput) -> list[str]:
        """Return what is wrong with the files of outputs, which are read once."""
        new = [of for of in outputs if of.folder not in self._broken]
        for output, problems in zip(new, self._store.problems(new) if new else (), strict=True):
            self._broken[output.folder] = output, [str(with_links(output, of)) for of in problems]
        return [problem for of in outputs for problem in self._broken[of.folder][1]]

    def _ahead(self, items: Iterator[T]) -> Iterator[T]:
        """Yield items when the files of the next ones are read, too, as many as the store reads at
        once: small ones at a URL wait for the server together."""
        while some := list(islice(items, self._store.checked_at_once)):
            self._broken_files(*filter(None, map(_stored, some)))
            yield from some

    def _content(self, found: StoredOutput, expected: Output | None) -> Result | Check:
        """Return the problems and the notes of an output whose files are whole, or what finds them
        where that takes long."""
        manifest = found.manifest
        if manifest.recipe.stage == RAW:
            return [], []
        if manifest.recipe.stage == TOKENIZER.name:
            tokenizer = replace(tokenizer_of(found), trust_remote_code=self._trust)
            return verify_tokenizer(tokenizer), []
        if manifest.recipe.stage == TOKENS.name:
            return self._tokens(found)
        reason = self._why_not_compared(found)
        if is_export(manifest):
            return self._export(found, reason)
        if reason:
            return [], [f"{reason}: {NOT_COMPARED}"]
        if manifest.recipe.version != VERSIONS.get(manifest.recipe.stage, manifest.recipe.version):
            return [], ["another version of tokflow made it: not made again"]
        known = {RAW, *(of.name for of in self._ancestry.stages)}
        if unknown := sorted(manifest.recipe.parents.keys() - known):
            return [], [f"it was made with {', '.join(unknown)}, unknown here: not made again"]
        opened = self._ancestry.open(found)
        if isinstance(opened, Split):
            return self._split(opened)
        if isinstance(opened, FileSequences):
            return verify_sequences(opened), []
        if expected is None:
            return [], [f"{manifest.recipe.stage} is made with its dataset alone: not made again"]
        return verify_made_again(expected), []

    def _split(self, split: Split) -> Result:
        found = split.stored
        if "mixture" in found.manifest.recipe.config:
            source: Split = self._ancestry.open(self._ancestry.parents(found)[SPLIT.name])
            tokenizer = self._ancestry.tokenizer(found)
            if tokenizer is None or self._broken_files(tokenizer.stored):
                return [], ["its tokenizer is not in this store, or damaged: not made again"]
            trusted = replace(tokenizer, trust_remote_code=self._trust)
            return verify_mixed_split(split, source, trusted), []
        given = partial(self._ancestry.given, found)
        if self._graph is not None:
            encode = cut_encoder(self._graph.split(str(found.manifest.partition)))
            return verify_split(split, encode, given=given), []
        is_cut = CUT_TOKENS_NAME in found.manifest.files
        notes = ["the text of cut documents is not here: their tokens were not made again"]
        return verify_split(split, given=given), notes if is_cut else []

    def _export(self, found: StoredOutput, why_alone: str | None) -> Check:
        """Return what compares an export with what it was made from, or verifies it alone, and
        says why."""
        if why_alone:
            return partial(_problems, [f"{why_alone}: {NOT_COMPARED}"], verify_export, found)
        export = Export(found)
        unread = f"{export.format_name} files are never read: compared by counts and checksums"
        parts = self._ancestry.parts(found)
        return partial(_problems, [unread] * (not export.is_read), verify_export, found, parts)

    def _tokens(self, found: StoredOutput) -> Check:
        """Return what compares a token shard with its counts and, if there is a graph, with the raw
        file."""
        tokenizer, notes = self._ancestry.tokenizer(found), list[str]()
        if dropped := found.manifest.dropped:
            names = " and ".join(dropped)
            notes = [f"{names}: dropped, as the exports stand; not compared with anything"]
        elif tokenizer is None:
            notes = ["its tokenizer is not in this store"]
        elif self._graph is not None and self._broken_files(self._graph.tokenizer.stored):
            notes = ["its tokenizer is damaged: not compared with the raw file"]
        elif (graph := self._graph) is not None:
            key, num_samples = str(found.manifest.partition), None if self._all else NUM_SAMPLES
            of_raw = graph.raw(key), graph.open_tokens(key), graph.documents(key), graph.encoding
            return partial(_compared_with_raw, *of_raw, num_samples=num_samples)
        elif tokenizer.verdict is not None and "gigatoken" in found.run().get("engine", ""):
            notes = ["gigatoken made it, and was found wrong with its tokenizer: no run uses it"]
        return partial(_problems, notes, verify_tokens, self._ancestry.shard(found))

    def _why_not_compared(self, found: StoredOutput) -> str | None:
        """Return why an output cannot be compared with what it was made from; None if it can."""
        ancestors, waiting = dict[Path, StoredOutput](), [found]
        try:
            while waiting:
                new = self._ancestry.parents(waiting.pop(0)).values()
                waiting += [of for of in new if of.folder not in ancestors]
                ancestors |= {of.folder: of for of in new}
        except MissingOutputError:
            return "its parents are not in this store"
        except (CorruptOutputError, ForeignOutputError) as error:
            self.unreadable_parents.append(error)
            return f"a parent cannot be read ({error.where})"
        if any(of.manifest.dropped for of in ancestors.values()):
            return "the tokens that it was made from were dropped"
        if not (damaged := [parent for parent in ancestors.values() if self._broken_files(parent)]):
            return None
        more = f" and {len(damaged) - 1:,} more" if len(damaged) > 1 else ""
        return f"its parents are damaged ({damaged[0].name}{more})"

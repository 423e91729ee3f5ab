"""Verify whole outputs: one at a path, all below a folder, or all of a dataset."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from tokflow.audit.ancestry import Ancestry, dataset_folder_of, place_of, with_links
from tokflow.audit.verify.export import verify_beside, verify_export
from tokflow.audit.verify.raw import NUM_SAMPLES, verify_against_raw
from tokflow.audit.verify.remade import (
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
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.output import Output
from tokflow.pipeline.stages import STAGES
from tokflow.raw.hashes import CACHE_NAME
from tokflow.sequences.segments import SEQUENCES_VERSION, FileSequences
from tokflow.sequences.stage import SEQUENCES
from tokflow.split.cut_tokens import CUT_TOKENS_NAME
from tokflow.split.mixture import mixture_of
from tokflow.split.spans import SPLIT_VERSION, Split
from tokflow.split.stage import SPLIT, cut_encoder
from tokflow.stage import RAW, Stage, stage_of
from tokflow.store.store import Store, StoredOutput
from tokflow.store.stored_outputs import Unreadable, opened, output_at, output_in, walk
from tokflow.store.verdicts import try_to_write_verdict
from tokflow.store.versions import changed_since
from tokflow.tokenizers.stage import TOKENIZER
from tokflow.tokenizers.tokenizer import tokenizer_of
from tokflow.tokens.stage import TOKENS

NOT_COMPARED = "not compared with it"

VERSIONS = {SPLIT.name: SPLIT_VERSION, SEQUENCES.name: SEQUENCES_VERSION}
"""Versions of the stages whose outputs are made again and compared."""

T = TypeVar("T")

Result = tuple[list[str], list[str]]
"""Problems, and notes."""


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


def verify_path(
    path: str | Path,
    *,
    trust_remote_code: bool = False,
    stages: tuple[Stage, ...] = STAGES,
) -> Iterator[Verification]:
    """Yield what is found of the output at `path`, or of everything below it.

    Outputs come in the order of the stages, before them those that cannot be read. What an output
    was made from is compared with it only if its own files are whole; else that is yielded, too,
    with what is wrong with it. Of a store at a URL what is there is read, whatever is in the cache.
    A tokenizer that is Python code is loaded only with `trust_remote_code`. `stages`: those that
    made the outputs, parents first.

    Raises: MissingOutputError where there is no output.
    """
    store, path = opened(path)
    verifier = _Verifier(store, stages, trust_remote_code=trust_remote_code)
    try:
        at = output_at(store, path)
    except (TokflowError, OSError) as error:
        yield _unreadable(path, error)
        return
    below = (
        [] if at is not None else sorted(walk(store, path.resolve()), key=partial(_ordinal, stages))
    )
    if at is not None:
        yield verifier.verify(at)
        yield from (_unreadable(at.folder, error) for error in verifier.unreadable_parents)
    elif not below:
        output_in(store, path)  # says what is there
    for found in verifier.ahead(iter(below)):
        yield verifier.verify_any(found)
    yield from verifier.damaged_parents()


def _ordinal(stages: tuple[Stage, ...], found: StoredOutput | Unreadable) -> int:
    """Return by what is sorted: what cannot be read, the stages in their order."""
    step = stage_of(stages, found.manifest) if isinstance(found, StoredOutput) else None
    return 1 + stages.index(step) if step else 0


def _unreadable(folder: Path, error: Exception) -> Verification:
    problem = message_of(error, where=folder)
    return Verification(name="unreadable output", folder=folder, problems=(problem,))


def _shown(found: StoredOutput) -> str:
    """Return what messages call an output, of an export its format, too."""
    format_ = found.manifest.details.get("format")
    return found.name if format_ in (None, found.export_name) else f"{found.name} ({format_})"


def verify_dataset(dataset: Dataset, *, all_documents: bool = False) -> Iterator[Verification]:
    """Yield what is found of every output that the dataset must have now.

    Raw files are hashed, whatever is remembered of them, and token shards compared with them; the
    tokens of a sample, or of `all_documents`, are compared with the reference's. An output that is
    not there is a problem, and so is a wrong sha256 in the cache of checksums, which is put right.
    Tokens of gigatoken that are not the reference's are kept as a verdict, so that the next run
    makes all tokens of that tokenizer again.

    Raises: TokflowError where the raw files or the tokenizer cannot be found.
    """
    graph = graph_of(dataset, rehash=True)
    for key, reason in graph.bad_files.items():
        note = f"it is left out of all outputs (raw.on_bad_file): {reason}"
        yield Verification(name=f"raw file {key}", folder=dataset.folder, notes=(note,))
    verifier = _Verifier(
        dataset.store,
        dataset.known_stages,
        trust_remote_code=dataset.tokenizer.trust_remote_code,
        graph=graph,
        all_documents=all_documents,
    )
    # The copies of raw files that were fetched, before a damaged one is fetched anew.
    for found in walk(dataset.store, dataset.folder / RAW):
        is_copy = isinstance(found, StoredOutput) and found.manifest.partition in graph.sources
        if isinstance(found, Unreadable) or is_copy:
            yield verifier.verify_any(found)
    graph.read_raw_files(list(graph.partitions))
    for source in (source for sources in graph.partitions.values() for source in sources):
        yield from _verify_remembered(graph, source.key)
    for output in verifier.ahead(graph.outputs()):
        yield verifier.verify_expected(output)
        if output.step.decides_all and not output.is_made:
            return


def _stored(item: object) -> StoredOutput | None:
    """Return the output that is there; None where there is none, or none that can be read."""
    if isinstance(item, Output):
        with suppress(TokflowError, OSError):
            return item.stored
    return item if isinstance(item, StoredOutput) else None


def _verify_remembered(graph: BuildGraph, key: str) -> Iterator[Verification]:
    """Yield what is wrong in the cache of checksums with that of a raw file."""
    try:
        raw = graph.raw_file(key)
    except (TokflowError, OSError):
        return  # a problem of its outputs
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
    yield Verification(name=f"raw file {key}", folder=cache.parent, problems=(str(problem),))


class _Verifier:
    """Verifies outputs, the files of each read once; with a graph, raw files are compared too."""

    def __init__(
        self,
        store: Store,
        stages: tuple[Stage, ...],
        *,
        trust_remote_code: bool,
        graph: BuildGraph | None = None,
        all_documents: bool = False,
    ) -> None:
        self._store, self._trust, self._all = store, trust_remote_code, all_documents
        self._graph = graph
        self._ancestry = Ancestry(stages)
        self._verified: set[Path] = set()
        self._broken: dict[Path, tuple[StoredOutput, list[str]]] = {}
        self.unreadable_parents: list[TokflowError] = []
        """Errors of parents that could not be read."""

    def verify_expected(self, output: Output) -> Verification:
        """Return what is wrong with an output that the dataset must have."""
        folder = Path()
        try:
            folder = output.folder
            return replace(self.verify(output.stored, output), name=output.title)
        except (TokflowError, OSError) as error:
            problem = message_of(error, where=output.title)
            if isinstance(error, MissingOutputError) and folder != Path():
                problem = f"{output.asset}: not built; run `tokflow run`"
            return Verification(name=output.title, folder=folder, problems=(problem,))

    def verify_any(self, found: StoredOutput | Unreadable) -> Verification:
        """Return what is wrong with something found in a store."""
        if isinstance(found, StoredOutput):
            return self.verify(found)
        return _unreadable(found.folder, found.error)

    def damaged_parents(self) -> Iterator[Verification]:
        """Yield the damaged parents that were not verified themselves."""
        damaged = [output for output, problems in self._broken.values() if problems]
        yield from (self.verify(one) for one in damaged if one.folder not in self._verified)

    def verify(self, found: StoredOutput, expected: Output | None = None) -> Verification:
        """Return what is wrong with an output: its files first and, if they are whole, the rest.
        `expected`: the output of its dataset, where that is known."""
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
                f"its manifest does not lead to: {found.manifest.fingerprint[:16]} of {found.name}"
            )
        notes = ["the content of the files was not checked"] if problems else []
        if not problems:
            try:
                problems, notes = self._content(found, expected)
            except UntrustedCodeError as error:
                notes = [f"it was not checked: {error}"]
            except (TokflowError, OSError) as error:
                problems = [message_of(error, where=found.folder)]
            except Exception as error:  # whatever it is, the other outputs are looked at
                problems = [f"{found.folder}: cannot be read: {type(error).__name__}: {error}"]
        notes = [*notes, *changed_since([found.run().get("versions", {})])]
        return Verification(
            name=_shown(found),
            folder=found.folder,
            problems=tuple(problems),
            notes=tuple(notes),
            num_bytes=sum(entry.num_bytes for entry in found.manifest.files.values()),
        )

    def _broken_files(self, found: StoredOutput) -> list[str]:
        self._read_files([found])
        return self._broken[found.folder][1]

    def _read_files(self, outputs: Iterable[StoredOutput]) -> None:
        new = [of for of in outputs if of.folder not in self._broken]
        for output, problems in zip(new, self._store.problems(new) if new else (), strict=True):
            self._broken[output.folder] = output, [str(with_links(output, of)) for of in problems]

    def ahead(self, items: Iterator[T]) -> Iterator[T]:
        """Yield items when the files of the next ones are read, too, as many as the store reads at
        once: small ones at a URL wait for the server together."""
        while some := list(islice(items, self._store.checked_at_once)):
            self._read_files(filter(None, map(_stored, some)))
            yield from some

    def _content(self, found: StoredOutput, expected: Output | None) -> Result:
        """Return the problems and the notes of an output whose files are whole."""
        manifest = found.manifest
        if manifest.stage == RAW:
            return [], []
        if manifest.stage == TOKENIZER.name:
            tokenizer = replace(tokenizer_of(found), trust_remote_code=self._trust)
            return verify_tokenizer(tokenizer), []
        if manifest.stage == TOKENS.name:
            return self._tokens(found)
        reason = self._why_not_compared(found)
        if is_export(manifest):
            return self._export(found, reason)
        if reason:
            return [], [f"{reason}: {NOT_COMPARED}"]
        if manifest.version != VERSIONS.get(manifest.stage, manifest.version):
            return [], ["another version of tokflow made it: not made again"]
        known = {RAW, *(of.name for of in self._ancestry.stages)}
        if unknown := sorted(manifest.parents.keys() - known):
            return [], [f"it was made with {', '.join(unknown)}, unknown here: not made again"]
        opened = self._ancestry.open(found)
        if isinstance(opened, Split):
            return self._split(opened)
        if isinstance(opened, FileSequences):
            return verify_sequences(opened), []
        if expected is None:
            return [], [f"{manifest.stage} is made with its dataset alone: not made again"]
        return verify_made_again(expected), []

    def _split(self, split: Split) -> Result:
        found = split.stored
        if mixture_of(found.manifest.config) is not None:
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

    def _export(self, found: StoredOutput, why_alone: str | None) -> Result:
        """Compare an export with what it was made from, or verify it alone and say why."""
        if why_alone:
            return verify_export(found), [f"{why_alone}: {NOT_COMPARED}"]
        export = Export(found)
        unread = f"{export.format_name} files are never read: compared by counts and checksums"
        return verify_export(found, self._ancestry.parts(found)), [unread] * (not export.is_read)

    def _tokens(self, found: StoredOutput) -> Result:
        """Compare a token shard with its counts and, if there is a graph, with the raw file."""
        if problems := verify_tokens(self._ancestry.shard(found)):
            return problems, []
        if dropped := found.manifest.dropped:
            names = " and ".join(dropped)
            return [], [f"{names}: dropped, as the exports stand; not compared with anything"]
        tokenizer = self._ancestry.tokenizer(found)
        if tokenizer is None:
            return [], ["its tokenizer is not in this store"]
        if self._graph is not None:
            return self._compare_with_raw(found, self._graph)
        if tokenizer.verdict is None or "gigatoken" not in found.run().get("engine", ""):
            return [], []
        return [], ["gigatoken made it, and was found wrong with its tokenizer: no run uses it"]

    def _compare_with_raw(self, found: StoredOutput, graph: BuildGraph) -> Result:
        tokenizer = graph.tokenizer
        if self._broken_files(tokenizer.stored):
            return [], ["its tokenizer is damaged: not compared with the raw file"]
        key = str(found.manifest.partition)
        raw = graph.raw(key)
        notes = [f"its raw file was {'read' if raw.files[0].remote else 'hashed'}"]

        def disqualify(difference: str) -> None:
            try_to_write_verdict(tokenizer, difference)
            notes.append("gigatoken made it; `tokflow run` makes all of them with the reference")

        problems = verify_against_raw(
            raw,
            graph.open_tokens(key),
            graph.documents(key),
            graph.encoding,
            num_samples=None if self._all else NUM_SAMPLES,
            on_difference=disqualify,
        )
        return problems, notes

    def _ancestors(self, output: StoredOutput) -> list[StoredOutput]:
        """Return all that an output is made from, down to the token shards, its parents first."""
        parents = self._ancestry.parents(output).values()
        return [*parents, *(of for parent in parents for of in self._ancestors(parent))]

    def _why_not_compared(self, found: StoredOutput) -> str | None:
        """Return why an output cannot be compared with what it was made from; None if it can."""
        try:
            ancestors = self._ancestors(found)
        except MissingOutputError:
            return "its parents are not in this store"
        except (CorruptOutputError, ForeignOutputError) as error:
            self.unreadable_parents.append(error)
            return f"a parent cannot be read ({error.where})"
        if any(of.manifest.dropped for of in ancestors):
            return "the tokens that it was made from were dropped"
        once = {of.folder: of for of in ancestors}.values()
        if not (damaged := [parent for parent in once if self._broken_files(parent)]):
            return None
        more = f" and {len(damaged) - 1:,} more" if len(damaged) > 1 else ""
        return f"its parents are damaged ({damaged[0].name}{more})"

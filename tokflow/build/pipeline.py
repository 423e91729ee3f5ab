"""The stages of a dataset as plain functions, in the order in which data goes through them.

    make_raw -> make_tokenizer -> make_tokens -> make_split -> make_sequences -> make_export

Each makes one output, or finds it made already and touches nothing. `build_dataset` does all of
it for all files. Nothing here knows of Dagster.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tokflow.build.dataset import Dataset
from tokflow.build.graph import STAGES, BuildGraph, Output, Stage
from tokflow.build.results import BuildResult, Reporter, StageFailure, StageResult
from tokflow.errors import (
    CorruptOutputError,
    MissingOutputError,
    TokflowError,
    first_five,
)
from tokflow.exports import ExportConfig, write_export
from tokflow.raw import RawFile
from tokflow.sequences.segments import write_sequences
from tokflow.split.spans import write_split
from tokflow.store.atomic import new_folder, point_latest_to
from tokflow.store.integrity import trust_files
from tokflow.store.manifest import Manifest, read_run
from tokflow.store.verdicts import spread_verdict
from tokflow.tokenizers.engines import EngineDiffersError
from tokflow.tokenizers.sources import write_tokenizer
from tokflow.tokens.encoder import engine_for
from tokflow.tokens.shard import write_token_shard


def make_raw(graph: BuildGraph, key: str) -> RawFile:
    """Return one raw file on this disk, fetched if it is elsewhere, with its sha256."""
    return graph.raw_file(key)


def make_tokenizer(graph: BuildGraph) -> StageResult:
    """Save the tokenizer into the store, so that later runs use exactly its bytes."""

    def write(folder: Path) -> None:
        write_tokenizer(graph.tokenizer_source(), folder, dataset=graph.dataset.name)

    return _made(graph.tokenizer_output, write)


def make_tokens(
    graph: BuildGraph, key: str, *, progress: Callable[[int, int], None] | None = None
) -> StageResult:
    """Tokenize the documents of one raw file.

    Where gigatoken turns out to be wrong on it, that is kept in the store, and the reference makes
    its tokens. Shards that were made before are to be made again: `graph.has_new_verdict`.
    """
    dataset = graph.dataset

    def write(folder: Path) -> None:
        spread_verdict(graph.tokenizer.folder, graph.tokenizer.fingerprint)
        write_token_shard(
            graph.raw_file(key),
            dataset.documents,
            graph.encoding,
            folder,
            dataset=dataset.name,
            progress=progress,
        )

    try:
        return _made(graph.tokens(key), write)
    except EngineDiffersError as error:
        graph.disqualify(f"{error.where}: {error.found}")
        return _made(graph.tokens(key), write)


def make_split(
    graph: BuildGraph, key: str, *, on_tokens: Callable[[StageResult], None] = lambda _: None
) -> StageResult:
    """Decide which text of one file belongs to which part.

    Where gigatoken turns out to be wrong on a piece of a document that is cut, that is kept in the
    store, and the reference makes the tokens of the file again, too: `graph.has_new_verdict`.
    `on_tokens` hears of tokens that were made so.
    """
    if graph.has_new_verdict and (tokens := make_tokens(graph, key)).is_new:
        on_tokens(tokens)
    dataset = graph.dataset

    def write(folder: Path) -> None:
        write_split(
            graph.raw_file(key),
            graph.open_tokens(key),
            dataset.documents,
            graph.encoding,
            dataset.split,
            folder,
            dataset=dataset.name,
            position=graph.position(key),
        )

    try:
        return _made(graph.split(key), write)
    except EngineDiffersError as error:
        graph.disqualify(f"{error.where}: {error.found}")
        return make_split(graph, key, on_tokens=on_tokens)


def make_sequences(graph: BuildGraph, key: str) -> StageResult:
    """Pack the tokens of each part of one file into rows."""
    dataset = graph.dataset

    def write(folder: Path) -> None:
        write_sequences(graph.open_split(key), dataset.packing, folder, dataset=dataset.name)

    return _made(graph.sequences(key), write)


def make_export(graph: BuildGraph, config: ExportConfig) -> StageResult:
    """Write one format for all files, and let `latest` lead to it.

    Raises: MissingOutputError that names the files which have not been built.
    """
    dataset = graph.dataset

    def write(folder: Path) -> None:
        write_export(
            graph.parts(config),
            config,
            folder,
            dataset=dataset.name,
            parents=graph.export_parents(config),
            details={
                "dtype": graph.tokenizer.dtype.str,
                "vocab_size": graph.tokenizer.vocab_size,
                "eos_id": graph.encoding.eos_id,
                "bos_id": graph.encoding.bos_id,
                "tokenizer_fingerprint": graph.tokenizer.fingerprint,
                "names": asdict(dataset.names),
            },
        )

    made = _made(graph.export(config), write)
    point_latest_to(made.output.folder)
    return made


FILE_STAGES: dict[Stage, Callable[[BuildGraph, str], StageResult]] = {
    "tokens": make_tokens,
    "split": make_split,
    "sequences": make_sequences,
}
"""The stages of one file each, in order."""


def build_dataset(
    dataset: Dataset,
    *,
    partitions: Sequence[str] | None = None,
    reporter: Reporter | None = None,
) -> BuildResult:
    """Make every output of `dataset` that is not there yet, for all files or some.

    One file that cannot be built does not stop the others; exports are made when all files are
    built. With `partitions`, exports are left alone unless that completes them.
    """
    started = time.perf_counter()
    build = _Build(BuildGraph(dataset), reporter or Reporter())
    build.run(partitions)
    return BuildResult(
        raw_files=build.raw_files,
        made=tuple(sorted(build.made, key=lambda made: STAGES.index(made.output.stage))),
        failed=tuple(build.failures),
        left_out=build.graph.listing.left_out,
        seconds=time.perf_counter() - started,
    )


class _Build:
    """One run over all stages; a file that failed in one stage is left out of the next."""

    def __init__(self, graph: BuildGraph, reporter: Reporter) -> None:
        self.graph = graph
        self.reporter = reporter
        self.raw_files: dict[str, RawFile] = {}
        self.made: list[StageResult] = []
        self.failures: list[StageFailure] = []

    def run(self, partitions: Sequence[str] | None) -> None:
        keys = self.graph.selected_keys(partitions)
        self.reporter.stage("raw", num_outputs=len(keys), num_bytes=0)
        with ThreadPoolExecutor(max_workers=1) as pool:
            pool.submit(self.graph.read_raw_files, keys)
            tokenizer = self._load_engine(keys)
        for key in keys:
            self._try("raw", key, partial(self._add_raw, key))
        make = partial(make_tokenizer, self.graph) if tokenizer is None else lambda: tokenizer
        if not self._try("tokenizer", "tokenizer", make):
            return
        if not self._run_stages():
            return
        is_partial = partitions is not None
        if self.failures or (is_partial and not self._is_all_packed()):
            return
        exports = self.graph.dataset.exports
        self.reporter.stage("export", num_outputs=len(exports), num_bytes=0)
        for config in exports:
            self._try("export", config.name, partial(make_export, self.graph, config))

    def _load_engine(self, keys: Sequence[str]) -> StageResult | None:
        """Load the tokenizer's engine, if it will be needed, while the raw files are hashed.

        Hashing leaves the interpreter free, and this takes half a second. Returns the tokenizer
        if it came to be made here. What goes wrong here goes wrong again, and is reported, where
        the tokenizer is made.
        """
        made = None
        dataset = self.graph.dataset
        is_first_build = not any((dataset.folder / "tokens" / key).is_dir() for key in keys)
        if dataset.tokenizer.kind != "trained" and is_first_build:
            with suppress(TokflowError, OSError):
                made = make_tokenizer(self.graph)
                engine_for(self.graph.encoding, dataset.documents)
        return made

    def _may_split(self) -> bool:
        """Say whether the splits can be made; with scope dataset they need all files' tokens.

        Where a bad file keeps them from being made this is said once, not for every file.
        """
        graph = self.graph
        if graph.dataset.split.scope == "file":
            return True
        waiting = [key for key in graph.sources if not self._has_tokens(key)]
        if waiting and self.failures:
            error = MissingOutputError(
                where=f"{graph.dataset.name}: split",
                expected=f"the tokens of all {len(graph.sources):,} raw files, through "
                "which scope: dataset counts",
                found=f"none of {first_five(waiting)}",
                remedy="mend what is wrong with them, or set split.scope: file",
            )
            failed = StageFailure("split", "all files", error)
            self.failures.append(failed)
            self.reporter.failed(failed)
        return not waiting

    def _has_tokens(self, key: str) -> bool:
        try:
            return self.graph.tokens(key).is_made
        except (TokflowError, OSError):
            return False

    def _run_stages(self) -> bool:
        """Make the outputs of every file; say whether that came to its end.

        Where gigatoken turns out to be wrong, what was made or found of its tokens is made again.
        """
        for stage in FILE_STAGES:
            if stage == "split" and not self._may_split():
                return False
            if not self._run_stage(stage):
                self.made = [made for made in self.made if not self._is_overtaken(made.output)]
                return self._run_stages()
        return True

    def _run_stage(self, stage: Stage) -> bool:
        """Make what is not made yet of one stage; say whether no verdict fell on the engine."""
        had_verdict = self.graph.has_new_verdict
        done = {made.output.name for made in self.made if made.output.stage == stage}
        keys = [key for key in self.raw_files if key not in done]
        num_bytes = sum(self.raw_files[key].num_bytes for key in keys)
        self.reporter.stage(stage, num_outputs=len(keys), num_bytes=num_bytes)
        for key in keys:
            make = partial(FILE_STAGES[stage], self.graph, key)
            if stage == "tokens":
                make = partial(make, progress=self.reporter.advance)
            if stage == "split":
                make = partial(make, on_tokens=self.made.append)
            if not self._try(stage, key, make):
                del self.raw_files[key]
            if self.graph.has_new_verdict and not had_verdict:
                return False
        return True

    def _is_overtaken(self, output: Output) -> bool:
        """Say whether a verdict fell on the engine after this output was made or found."""
        expected = {"tokens": self.graph.tokens, "split": self.graph.split}.get(output.stage)
        return expected is not None and expected(output.name).fingerprint != output.fingerprint

    def _add_raw(self, key: str) -> None:
        self.raw_files[key] = make_raw(self.graph, key)

    def _is_all_packed(self) -> bool:
        try:
            return all(self.graph.sequences(key).is_made for key in self.graph.sources)
        except (TokflowError, OSError):
            return False

    def _try(self, stage: Stage, name: str, make: Callable[[], StageResult | None]) -> bool:
        self.reporter.start(stage, name)
        try:
            made = make()
        except Exception as error:  # whatever it is, it stops this output and no other
            failed = StageFailure(stage, name, error)
            self.failures.append(failed)
            self.reporter.failed(failed)
            return False
        if made is not None:
            self.made.append(made)
            self.reporter.made(made)
        return True


def _found(output: Output) -> Manifest | None:
    """Return the manifest of an output that need not be made."""
    try:
        return output.find()
    except CorruptOutputError:
        return None


def _made(output: Output, write: Callable[[Path], None]) -> StageResult:
    manifest = _found(output)
    is_new = manifest is None
    if is_new:
        with new_folder(output.folder) as folder:
            write(folder)
    made = StageResult(output, manifest or output.manifest(), is_new, read_run(output.folder))
    if is_new and output.stage != "export":  # nothing else of a run is made from an export
        trust_files(made)
    return made

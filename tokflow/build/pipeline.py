"""The stages of a dataset as plain functions, in the order in which data goes through them.

    make_tokenizer -> make_tokens -> make_split -> make_sequences -> make_export

Each makes one output, or finds it made already and touches nothing. `build_dataset` does all of
it for all files. Nothing here knows of Dagster.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path

from tokflow.build.dataset import Dataset
from tokflow.build.graph import BuildGraph
from tokflow.build.output import FILE_STAGES, STAGES, Output, Stage, by_stage
from tokflow.build.results import BuildResult, Reporter, StageFailure, StageResult
from tokflow.errors import MissingOutputError, TokflowError, first_five
from tokflow.exports import ExportConfig, write_export
from tokflow.raw import RawFile
from tokflow.sequences.segments import write_sequences
from tokflow.split.cut_tokens import CutEncoder, write_cut_tokens
from tokflow.split.spans import write_split
from tokflow.store.atomic import new_folder, point_latest_to
from tokflow.store.integrity import trust_files
from tokflow.store.manifest import read_run
from tokflow.store.verdicts import spread_verdict
from tokflow.tokenizers.engines import EngineDiffersError
from tokflow.tokenizers.sources import write_tokenizer
from tokflow.tokens.encoder import engine_for
from tokflow.tokens.shard import write_token_shard

Progress = Callable[[int, int], None]
"""Called with the documents and the bytes of text that were just tokenized."""


def make_tokenizer(graph: BuildGraph) -> StageResult:
    """Save the tokenizer into the store, so that later runs use exactly its bytes."""
    return _make(graph.tokenizer_output)


def make_tokens(graph: BuildGraph, key: str, *, progress: Progress | None = None) -> StageResult:
    """Tokenize the documents of one raw file.

    Where gigatoken turns out to be wrong on it, that is kept in the store, and the reference makes
    its tokens. Shards that were made before are to be made again: `graph.has_new_verdict`.
    """
    try:
        return _make(graph.tokens(key), progress)
    except EngineDiffersError as error:
        graph.disqualify(f"{error.where}: {error.found}")
        return _make(graph.tokens(key), progress)


def make_split(graph: BuildGraph, key: str) -> StageResult:
    """Decide which text of one file belongs to which part.

    Where gigatoken turns out to be wrong on a piece of a document that is cut, that is kept in the
    store, and the reference makes the tokens of the file again, too: `graph.has_new_verdict`.
    """
    if graph.has_new_verdict:
        make_tokens(graph, key)
    try:
        return _make(graph.split(key))
    except EngineDiffersError as error:
        graph.disqualify(f"{error.where}: {error.found}")
        return make_split(graph, key)


def cut_encoder(graph: BuildGraph, key: str) -> CutEncoder:
    """Return the encoder of what the split of one file cuts."""
    return partial(
        write_cut_tokens,
        raw=graph.raw_file(key),
        documents=graph.dataset.documents,
        encoding=graph.encoding,
    )


def make_sequences(graph: BuildGraph, key: str) -> StageResult:
    """Pack the tokens of each part of one file into sequences."""
    return _make(graph.sequences(key))


def make_export(graph: BuildGraph, config: ExportConfig) -> StageResult:
    """Write one format for all files, and let `latest` lead to it.

    Raises: MissingOutputError that names the files which have not been built.
    """
    return _make(graph.export(config))


def _make(output: Output, progress: Progress | None = None) -> StageResult:
    """Make an output, unless it is there."""
    graph, stage, name = output.graph, output.stage, output.name
    is_new = output.find() is None
    if is_new:
        with new_folder(output.folder) as folder:
            if stage == "tokens":
                _write_tokens(graph, name, folder, progress)
            else:
                WRITERS[stage](graph, name, folder)
    made = StageResult(output, output.manifest(), is_new, read_run(output.folder))
    if stage == "export":
        point_latest_to(output.folder)
    elif is_new:  # nothing else of a run is made from an export
        trust_files(made)
    return made


def _write_tokenizer(graph: BuildGraph, _: str, folder: Path) -> None:
    write_tokenizer(graph.tokenizer_source(), folder, dataset=graph.dataset.name)


def _write_tokens(graph: BuildGraph, key: str, folder: Path, progress: Progress | None) -> None:
    dataset, tokenizer = graph.dataset, graph.tokenizer
    spread_verdict(tokenizer.folder, tokenizer.fingerprint)
    write_token_shard(
        graph.raw_file(key),
        dataset.documents,
        graph.encoding,
        folder,
        dataset=dataset.name,
        progress=progress,
    )


def _write_split(graph: BuildGraph, key: str, folder: Path) -> None:
    dataset = graph.dataset
    write_split(
        graph.open_tokens(key),
        dataset.split,
        folder,
        dataset=dataset.name,
        position=graph.position(key),
        encode_cut=cut_encoder(graph, key),
    )


def _write_sequences(graph: BuildGraph, key: str, folder: Path) -> None:
    dataset = graph.dataset
    write_sequences(graph.open_split(key), dataset.packing, folder, dataset=dataset.name)


def _write_export(graph: BuildGraph, name: str, folder: Path) -> None:
    config = graph.export_config(name)
    write_export(
        graph.parts(config),
        config,
        folder,
        dataset=graph.dataset.name,
        parents=graph.export(config).recipe.parents,
        details=graph.export_details(),
    )


WRITERS: Mapping[Stage, Callable[[BuildGraph, str, Path], None]] = {
    "tokenizer": _write_tokenizer,
    "split": _write_split,
    "sequences": _write_sequences,
    "export": _write_export,
}


def build_dataset(
    dataset: Dataset,
    *,
    partitions: Sequence[str] | None = None,
    reporter: Reporter | None = None,
    graph: BuildGraph | None = None,
) -> BuildResult:
    """Make every output of `dataset` that is not there yet, for all files or some.

    One file that cannot be built does not stop the others; exports are made when all files are
    built. With `partitions`, exports are left alone unless that completes them. `graph`: that of a
    plan made just now, so that raw files are not looked for again.
    """
    started = time.perf_counter()
    graph = BuildGraph(dataset) if graph is None else graph.online()
    build = _Build(graph, reporter or Reporter(), is_partial=partitions is not None)
    build.run(graph.selected_keys(partitions))
    return BuildResult(
        raw_files=build.raw_files,
        made=tuple(sorted(build.made.values(), key=lambda made: STAGES.index(made.output.stage))),
        failed=tuple(build.failed),
        left_out=graph.listing.left_out,
        seconds=time.perf_counter() - started,
    )


class _Build:
    """One run over all stages; a file that failed in one stage is left out of the next."""

    def __init__(self, graph: BuildGraph, reporter: Reporter, *, is_partial: bool) -> None:
        self.graph = graph
        self.reporter = reporter
        self.is_partial = is_partial
        self.raw_files: dict[str, RawFile] = {}
        """Those of which nothing has failed so far."""
        self.made: dict[tuple[Stage, str], StageResult] = {}
        self.failed: list[StageFailure] = []

    def run(self, keys: Sequence[str]) -> None:
        self.reporter.stage("raw", num_outputs=len(keys), num_bytes=0)
        with ThreadPoolExecutor(max_workers=1) as pool:
            pool.submit(self.graph.read_raw_files, keys)
            tokenizer = self._load_engine(keys)
        for key in keys:
            self._try("raw", key, partial(self._add_raw, key))
        if tokenizer is not None:
            self._try("tokenizer", "tokenizer", lambda: tokenizer)
        while not self._make_all():
            self.made = {key: self.made[key] for key in self.made if key[0] == "tokenizer"}

    def _make_all(self) -> bool:
        """Make the outputs stage by stage, as far as it goes.

        Returns False where gigatoken turned out to be wrong: all tokens are others now, and so is
        what was made of them.
        """
        for stage, outputs in groupby(self.graph.outputs(list(self.raw_files)), by_stage):
            if not self._may_begin(stage):
                break
            todo = [output for output in outputs if self._is_todo(output)]
            if stage != "tokenizer":
                sizes = [self.raw_files[o.name].num_bytes for o in todo if stage != "export"]
                self.reporter.stage(stage, num_outputs=len(todo), num_bytes=sum(sizes))
            for output in todo:
                make = partial(_make, output, self.reporter.advance)
                try:
                    is_well = self._try(stage, output.name, make)
                except EngineDiffersError as error:
                    self.graph.disqualify(f"{error.where}: {error.found}")
                    return False
                if not is_well and stage in FILE_STAGES:
                    del self.raw_files[output.name]
        return True

    def _may_begin(self, stage: Stage) -> bool:
        """Return whether a stage can begin: what all of it is made from is there."""
        sources = self.graph.sources
        if stage == "tokens":
            return ("tokenizer", "tokenizer") in self.made
        if stage == "split" and self.graph.dataset.split.scope == "dataset":
            waiting = [key for key in sources if not self.graph.tokens(key).is_made]
            if waiting and self.failed:
                self._fail("split", "all files", self._waits_for(waiting))
            return not waiting
        if stage == "export":
            is_packed = all(self.graph.sequences(key).is_made for key in sources)
            return not self.failed and (is_packed or not self.is_partial)
        return True

    def _waits_for(self, keys: Sequence[str]) -> TokflowError:
        """Return why no split can be made, which is said once and not for every file."""
        return MissingOutputError(
            where=f"{self.graph.dataset.name}: split",
            expected=f"the tokens of all {len(self.graph.sources):,} raw files, through "
            "which scope: dataset counts",
            found=f"none of {first_five(keys)}",
            remedy="mend what is wrong with them, or set split.scope: file",
        )

    def _is_todo(self, output: Output) -> bool:
        is_lost = output.stage in FILE_STAGES and output.name not in self.raw_files
        return not is_lost and (output.stage, output.name) not in self.made

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

    def _add_raw(self, key: str) -> None:
        self.raw_files[key] = self.graph.raw_file(key)

    def _try(self, stage: Stage, name: str, make: Callable[[], StageResult | None]) -> bool:
        self.reporter.start(stage, name)
        try:
            made = make()
        except EngineDiffersError:
            raise
        except Exception as error:  # whatever it is, it stops this output and no other
            self._fail(stage, name, error)
            return False
        if made is not None:  # what a reporter raises, such as BrokenPipeError, is no fault of it
            self.made[stage, name] = made
            self.reporter.made(made)
        return True

    def _fail(self, stage: Stage, name: str, error: Exception) -> None:
        self.failed.append(StageFailure(stage, name, error))
        self.reporter.failed(self.failed[-1])

"""Builds of a dataset: one output, one stage of many files, or everything of all.

What is made already is found, and nothing is touched. Nothing here knows of Dagster.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Generator, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from threading import Thread

from tokflow.documents.ranges import text_bytes_of
from tokflow.errors import MissingOutputError, TokflowError, first_five
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.failures import SkippedFiles, note_failures
from tokflow.pipeline.gc import drop_tokens
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixture import MixtureGraph, graph_of
from tokflow.pipeline.output import Output
from tokflow.pipeline.raw_files import FileShare
from tokflow.pipeline.results import (
    BuildResult,
    Event,
    Reporter,
    StageBegun,
    StageFailure,
    StageResult,
)
from tokflow.pipeline.stages import needed_for
from tokflow.pipeline.tasks import engine_of, is_small, make_outputs, tokens_ahead
from tokflow.pools import open_pool
from tokflow.pools.machine import PeakMemory
from tokflow.pools.pool import Advance, InProcess, Pool, ignore
from tokflow.raw import RawPartition
from tokflow.split.stage import SPLIT
from tokflow.stage import RAW, Stage
from tokflow.tokenizers.engines.gate import EngineDiffersError
from tokflow.tokenizers.stage import TOKENIZER
from tokflow.tokens.shard_files import may_have_segments
from tokflow.tokens.stage import TOKENS

FOR_MIXTURES = ((SPLIT.name, ""),)
"""The outputs that a mixture needs of its sources, by stage and variant."""


def make_output(graph: BuildGraph, stage: str, name: str) -> StageResult:
    """Make one output in this process, or find it made already; for its `name` see
    `BuildGraph.named`.

    Where gigatoken turns out to be wrong on it, that is kept in the store, and the reference makes
    it. Raises: what keeps it from being made.
    """
    [(_, result)] = make_outputs(graph, [graph.named(stage, name)], InProcess())
    if isinstance(result, EngineDiffersError):
        graph.disqualify(f"{result.where}: {result.found}")
        return make_output(graph, stage, name)
    if isinstance(result, Exception):
        raise result
    return result


def build_dataset(
    dataset: Dataset,
    *,
    partitions: Sequence[str] | None = None,
    reporter: Reporter | None = None,
    graph: BuildGraph | None = None,
    jobs: int | None = None,
    pool: str | None = None,
    share: FileShare | None = None,
) -> BuildResult:
    """Make every output of `dataset` that is not there yet, for all files or some.

    One file that cannot be built does not stop the others; exports are made when all files are
    built. With `partitions`, exports are left alone unless that completes them. `graph`: that of a
    plan made just now, so that raw files are not looked for again. `jobs`: how many processes work
    at once, by default one for each core (or `TOKFLOW_JOBS`); `pool`: `ray` for a cluster's (or
    `TOKFLOW_POOL`). What is made depends on neither. `share`: that of the files that is done here,
    up to what needs no other file, and no export; shares may be done at once, on other machines,
    and twice. What a mixture's sources lack is made first, up to splits.

    Raises: ConfigError where they cannot be mixed.
    """
    graph = graph_of(dataset, reads_once=True) if graph is None else graph.online()
    reporter = reporter or Reporter()
    keys = graph.selected_keys(partitions)
    build = Build(
        graph,
        keys if share is None else share.of(keys, dataset),
        advance=reporter.advance,
        only=partitions,
        is_share=share is not None,
    )
    with open_pool(jobs, pool) as opened, closing(build.events(opened)) as events:
        for event in events:
            reporter.hear(event)
    built = build.result()
    is_whole = not (partitions or share or built.failed)
    return replace(built, dropped_bytes=drop_tokens(graph)) if is_whole else built


class Build:
    """The executor of all builds: makes outputs stage by stage, and yields what happens.

    A file that failed in one stage is left out of the next. Nothing is done before the next event
    is asked for, so that a reader which stops ends the build.
    """

    def __init__(
        self,
        graph: BuildGraph,
        keys: Sequence[str],
        *,
        advance: Advance = ignore,
        only: Collection[str] | None = None,
        is_share: bool = False,
        asked: Collection[tuple[str, str]] | None = None,
    ) -> None:
        """`keys`: the partitions to begin with. `only`: those to build if not all, of which a limit
        of the whole dataset may not know some yet; exports are made only if these complete them, or
        they are asked for. `asked`: the outputs to make, by stage and variant, with all
        that they are made from; by default all. `advance`: hears of text as it is tokenized, for
        which no event waits."""
        self.graph, self.keys, self.asked = graph, keys, asked
        self.advance, self.is_share = advance, is_share
        self.only = None if only is None else {*only}
        self.needed = None if asked is None else needed_for(asked, graph.dataset)
        self.started = time.perf_counter()
        self.tried: set[str] = set()
        """The partitions that it has begun with."""
        self.partitions: dict[str, RawPartition] = {}
        """Those of which nothing has failed so far."""
        self.made: dict[Output, StageResult] = {}
        self.skipped = SkippedFiles(graph)
        self.failed = self.skipped.failed
        self.new: set[Path] = set()
        """Folders of what it has made."""
        self.stage_seconds: dict[str, float] = defaultdict(float)
        self.memory = PeakMemory()

    def events(self, pool: Pool) -> Generator[Event, None, None]:
        """Yield each stage that begins, each output that is there and each that failed.

        Raises: ConfigError where sources cannot be mixed.
        """
        stage, since = RAW, self.started
        with self.memory, closing(self._events(pool)) as events:
            for event in events:
                if isinstance(event, StageBegun):
                    now = time.perf_counter()
                    self.stage_seconds[stage] += now - since
                    stage, since = event.stage, now
                yield event
        self.stage_seconds[stage] += time.perf_counter() - since

    def _events(self, pool: Pool) -> Generator[Event, None, None]:
        keys = self.keys
        if isinstance(self.graph, MixtureGraph):
            yield from self._build_sources(self.graph, pool)
            if self.failed:
                return
            more = self._wanted(self.graph.take_more())
            keys = [*(of for of in keys if of in self.graph.partitions), *more]
        yield StageBegun(RAW, len(keys), 0)
        with ThreadPoolExecutor(max_workers=1) as hashing:
            hashing.submit(self.graph.read_raw_files, keys)
            tokenizer = self._load_engine(keys, pool)
        yield from self._begin(keys)
        if not isinstance(pool, InProcess):
            Thread(target=self._hash_cut_files, daemon=True).start()
        if tokenizer is not None:
            yield StageBegun(TOKENIZER.name, 1, 0)
            yield self._added(tokenizer.output, tokenizer)
        is_whole = self.only is None and self.needed is None and not self.is_share
        with tokens_ahead(self.graph, self.partitions if is_whole else {}, pool):
            while (yield from self._make_all(pool)):
                # Of a limited dataset the first files are known again, of groups without a bad file
                # the next ones.
                self.made = {of: made for of, made in self.made.items() if self.graph.has(of)}
                now = self.graph.partitions
                for key, raw in [*self.partitions.items()]:
                    if [of.key for of in now.get(key, ())] != [of.key for of in raw.files]:
                        del self.partitions[key]
                self.tried &= now.keys()
                done = {*self.partitions, *(of.name for of in self.failed)}
                new = [] if self.is_share else [key for key in now if key not in done]
                yield from self._begin(self._wanted(new))

    def _hash_cut_files(self) -> None:
        """Hash the files that several workers read, while they do."""
        for raw in [*self.partitions.values()]:
            if len(raw.files) == 1 and may_have_segments(raw, self.graph.dataset.documents):
                with suppress(TokflowError):  # raised again where the segments are joined
                    _ = raw.sha256

    def result(self) -> BuildResult:
        """Return everything that was made, in the order of the stages, and keep for a plan what
        failed."""
        note_failures(self.graph, self.failed, self.tried)
        self.skipped.keep()
        self.graph.write_indexes()
        outputs = self.graph.outputs() if self.made else ()
        return BuildResult(
            partitions=self.partitions,
            made=tuple(self.made[of] for of in outputs if of in self.made),
            failed=tuple(self.failed),
            left_out=self.graph.listing.left_out,
            bad_files=tuple(self.skipped.found),
            seconds=time.perf_counter() - self.started,
            stage_seconds=self.stage_seconds,
            peak_bytes=self.memory.num_bytes,
        )

    def _build_sources(self, graph: MixtureGraph, pool: Pool) -> Iterator[Event]:
        """Make what the sources of a mixture lack, up to their splits.

        Raises: ConfigError where their tokenizers are not one, before anything is tokenized, and
        where they cannot be mixed as the config says.
        """
        missing = [
            one
            for one in graph.of_sources.values()
            if any(not of.is_made or one.lacks_tokens(of) for of in one.outputs(until=SPLIT.name))
        ]
        for source in missing:
            make_output(source, TOKENIZER.name, TOKENIZER.name)
        if missing:
            graph.check_tokenizers()
        for source in missing:
            build = Build(source, list(source.partitions), advance=self.advance, asked=FOR_MIXTURES)
            yield from build._events(pool)
            self.skipped.add(build.result(), source.dataset.name)
        if not self.failed:
            _ = graph.mixture_plan

    def _begin(self, keys: Sequence[str]) -> Iterator[StageFailure]:
        self.tried.update(keys)
        for key in keys:
            try:
                raw = self.graph.raw(key)
                self.skipped.check(raw)
                self.partitions[key] = raw
            except Exception as error:
                yield self._failure(RAW, key, error)

    def _make_all(self, pool: Pool) -> Generator[Event, None, bool]:
        """Make the outputs stage by stage, as far as it goes.

        Returns True where gigatoken turned out to be wrong: all tokens are others now, and so is
        what was made of them.
        """
        held: set[str] = set()  # stages that did not begin
        if (yield from self.skipped.leave_out()):
            return True
        for stage in self.graph.stages:
            outputs = [
                of
                for of in self.graph.outputs_of(stage.name, self.partitions)
                if self.needed is None or (of.stage, of.variant) in self.needed
            ]
            if outputs and not (yield from self._may_begin(outputs[0], held)):
                held.add(stage.name)
                continue
            for _, of_packing in groupby(outputs, attrgetter("packing")):
                if (yield from self._make_step(stage, [*of_packing], pool)):
                    return True
            if (yield from self.skipped.leave_out()):
                return True
        return False

    def _make_step(
        self, stage: Stage, outputs: Sequence[Output], pool: Pool
    ) -> Generator[Event, None, bool]:
        """Make the outputs of a stage, of sequences those of one packing; return as `_make_all`.

        After the tokens of the files that a limit of the whole dataset is known to take come those
        of the files that follow, until it is reached. Where only some files are to be built, those
        that follow are known then, and what is made of all files waits for them.
        """
        going = [of for of in outputs if of.key in self.partitions or not stage.is_of_file]
        todo, is_more = [of for of in going if of not in self.made], False
        while todo or not (is_more or stage.decides_all):
            num_bytes = sum(self.partitions[of.key].num_bytes for of in todo if stage.is_of_file)
            yield StageBegun(stage.name, len(todo), num_bytes, is_more)
            with closing(make_outputs(self.graph, todo, pool, advance=self.advance)) as results:
                for output, result in results:
                    if isinstance(result, EngineDiffersError):
                        self.graph.disqualify(f"{result.where}: {result.found}")
                        return True
                    yield self._added(output, result)
            todo, is_more = [], True
            if stage.has_engine and self.graph.limited is not None:
                keys = self._wanted(self.graph.take_more())
                yield from self._begin(keys)
                todo = [self.graph.tokens(key) for key in keys if key in self.partitions]
        return False

    def _wanted(self, keys: Sequence[str]) -> list[str]:
        return [key for key in keys if self.only is None or key in self.only]

    def _added(self, output: Output, result: StageResult | Exception) -> Event:
        if isinstance(result, StageResult):
            if result.is_new:
                self.new.add(result.folder)
            elif result.folder in self.new:  # before a bad file was left out
                result = replace(result, is_new=True)
            self.made[output] = result
            if self.graph.ahead is not None and output.step.has_engine:
                self.graph.ahead.add(result.stored, output.key)
            return result
        if output.step.is_of_file:
            del self.partitions[output.key]
        return self._failure(output.stage, output.name, result, output.packing)

    def _may_begin(self, output: Output, held: Set[str]) -> Generator[StageFailure, None, bool]:
        """Return whether a stage, with this output, can begin: what all of it is made from is
        there. `held`: the stages before it that could not."""
        inputs, step = output.direct_inputs(), output.step
        of_all = [of for of in inputs if of.is_of_all]
        is_of_one = not of_all and (step.is_of_file or step.decides_all)
        if not held.isdisjoint(of.stage for of in inputs) or (self.is_share and not is_of_one):
            return False
        is_of_file, steps = self.graph.is_of_file, self.graph.steps
        once = [of for of in inputs if steps.get(of.stage) and not is_of_file(of.stage)]
        if any(self.graph.output(of.stage, variant=of.variant) not in self.made for of in once):
            return False
        if step.is_of_file:
            for of in of_all:
                keys = () if of.dataset else self.graph.partitions  # another was built before
                outputs = {key: self.graph.output(of.stage, key, of.variant) for key in keys}
                waiting = [key for key, made_from in outputs.items() if not made_from.is_made]
                if waiting and self.failed:
                    error = MissingOutputError(
                        where=f"{self.graph.dataset.name}: {output.stage}",
                        expected=f"the {of.stage} of all {len(outputs):,} partitions{of.why_all}",
                        found=f"none of {first_five(waiting)}",
                        remedy=of.remedy,
                    )
                    yield self._failure(output.stage, "all files", error)
                if waiting:
                    return False
            return True
        if of_all and self.failed:
            return False
        return all(
            self.graph.output(of.stage, key, of.variant).is_made
            and not self.graph.lacks_tokens(self.graph.tokens(key))
            for of in (of_all if self.only is not None and self.asked is None else ())
            for key in self.graph.partitions
        )

    def _load_engine(self, keys: Sequence[str], pool: Pool) -> StageResult | None:
        """Make the tokenizer and load its engine, or start the processes that will need it, while
        the raw files are hashed.

        Hashing leaves the interpreter free, and this takes half a second. Returns the tokenizer
        if it came to be made here. What goes wrong here goes wrong again, and is reported, where
        the tokenizer is made.
        """
        made = None
        if self.graph.of_sources or not (self.needed is None or (TOKENS.name, "") in self.needed):
            return None
        dataset = self.graph.dataset
        if any((dataset.folder / TOKENS.path / key).is_dir() for key in keys):
            return None
        sources = (of for key in keys for of in self.graph.partitions[key])
        paths = [path for of in sources if of.is_local and (path := Path(of.url)).exists()]
        sizes = [text_bytes_of(of, of.stat().st_size, dataset.documents) for of in paths]
        is_done_here = is_small(sum(sizes), num_outputs=len(keys))
        if not is_done_here:
            pool.start()
        if dataset.tokenizer.kind != "trained":
            tokenizer = self.graph.output(TOKENIZER.name)
            [(_, result)] = make_outputs(self.graph, [tokenizer], InProcess())
            made = result if isinstance(result, StageResult) else None
            if made is not None and is_done_here:
                with suppress(TokflowError, OSError):
                    engine_of(self.graph)
        return made

    def _failure(self, stage: str, name: str, error: Exception, packing: str = "") -> StageFailure:
        return self.skipped.take(StageFailure(stage, name, error, packing))

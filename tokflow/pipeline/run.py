"""Builds of a dataset: one output, one stage of many files, or everything of all.

What is made already is found, and nothing is touched. Nothing here knows of Dagster.
"""

import time
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from tokflow.documents.ranges import text_bytes_of
from tokflow.errors import ConfigError, MissingOutputError, TokflowError, first_five
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.failures import note_failures
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixture import MixtureGraph, graph_of
from tokflow.pipeline.output import Output
from tokflow.pipeline.raw_files import FileShare, in_taking_order
from tokflow.pipeline.results import BuildResult, Reporter, StageFailure, StageResult
from tokflow.pipeline.stages import for_mixtures, up_to
from tokflow.pipeline.tasks import engine_of, is_small, make_outputs
from tokflow.pools import open_pool
from tokflow.pools.pool import Advance, InProcess, Pool, ignore
from tokflow.raw import RawPartition
from tokflow.stage import RAW, Input, Stage
from tokflow.tokenizers.engines import EngineDiffersError
from tokflow.tokenizers.stage import TOKENIZER
from tokflow.tokens.stage import TOKENS


def make_output(graph: BuildGraph, stage: str, name: str) -> StageResult:
    """Make one output in this process, or find it made already; see `make_stage` and, for its
    `name`, `BuildGraph.named`.

    Raises: what keeps it from being made.
    """
    output = graph.named(stage, name)
    [result] = make_stage(graph, stage, [output.key], InProcess(), variant=output.variant).values()
    if isinstance(result, Exception):
        raise result
    return result


def make_stage(
    graph: BuildGraph,
    stage: str,
    keys: Sequence[str],
    pool: Pool,
    *,
    variant: str = "",
    advance: Advance = ignore,
) -> dict[str, StageResult | Exception]:
    """Make the outputs of one stage, and of one variant, of some partitions, or the one of the
    dataset; return what came of each, by name.

    Where gigatoken turns out to be wrong on one, that is kept in the store, and the reference makes
    the tokens of these files, again where a split is to be made. Shards of other files that were
    made before are to be made again: `graph.has_new_verdict`.
    """
    stages = [stage]
    if graph.has_new_verdict and graph.is_of_file(stage):  # what it is made from is another now
        stages = _made_again(graph, stage)
    results: dict[str, StageResult | Exception] = {}
    for each in stages:
        failed = {key for key in results if isinstance(results[key], Exception)}
        own = variant if each == stage else ""
        for some in _made_together(graph, each, [key for key in keys if key not in failed]):
            outputs = [graph.output(each, key, own) for key in some]
            with closing(make_outputs(graph, outputs, pool, advance=advance)) as made:
                for output, result in made:
                    if isinstance(result, EngineDiffersError):
                        graph.disqualify(f"{result.where}: {result.found}")
                        how: dict[str, Any] = {"variant": variant, "advance": advance}
                        return make_stage(graph, stage, keys, pool, **how)
                    results[output.name] = result
            graph.take_more()
    return results


def _made_again(graph: BuildGraph, stage: str) -> list[str]:
    """Return a stage that is made of tokens, or of selections of them, behind all these."""
    dataset, names = graph.dataset, {stage}
    for step in reversed(graph.stages):
        if step.name in names and step is not TOKENS:
            inputs = step.all_inputs(dataset)
            names |= {of.stage for of in inputs if graph.is_of_file(of.stage) and not of.dataset}
    return [of.name for of in graph.stages if of.name in names]


def _made_together(graph: BuildGraph, stage: str, keys: Sequence[str]) -> list[list[str]]:
    """Return keys of which the outputs of a stage can be made at the same time: all of them, but
    one by one where each may take what those before it have left."""
    if graph.limited is not None and stage == TOKENS.name:
        return [[key] for key in in_taking_order(keys, graph.dataset.shuffle)]
    return [list(keys)]


def build_dataset(
    dataset: Dataset,
    *,
    partitions: Sequence[str] | None = None,
    reporter: Reporter | None = None,
    graph: BuildGraph | None = None,
    jobs: int | None = None,
    pool: str | None = None,
    share: FileShare | None = None,
    until: str | None = None,
) -> BuildResult:
    """Make every output of `dataset` that is not there yet, for all files or some.

    One file that cannot be built does not stop the others; exports are made when all files are
    built. With `partitions`, exports are left alone unless that completes them. `graph`: that of a
    plan made just now, so that raw files are not looked for again. `jobs`: how many processes work
    at once, by default one for each core (or `TOKFLOW_JOBS`); `pool`: `ray` for a cluster's (or
    `TOKFLOW_POOL`). What is made depends on neither. `share`: that of the files that is done here,
    up to what needs no other file, and no export; shares may be done at once, on other machines,
    and twice. `until`: the last stage, by default of all. What a mixture's sources
    lack is made first, up to splits.

    Raises: ConfigError where they cannot be mixed.
    """
    started = time.perf_counter()
    if share is not None and dataset.documents.limit.scope == "dataset":
        raise ConfigError(
            where="--shard",
            expected="a dataset whose files are built each by itself",
            found=f"share {share} of one in which documents.limit.scope is dataset, so that each "
            "file may take what those before it have left",
            remedy="run it without --shard",
        )
    graph = graph_of(dataset) if graph is None else graph.online()
    keys = graph.selected_keys(partitions)
    with open_pool(jobs, pool) as opened:
        how = {"is_partial": partitions is not None, "is_share": share is not None}
        build = _Build(graph, reporter or Reporter(), opened, until=until, **how)
        build.run(keys if share is None else share.of(keys))
    note_failures(graph, build.failed, tried=build.tried)
    return BuildResult(
        partitions=build.partitions,
        made=tuple(build.in_order()),
        failed=tuple(build.failed),
        left_out=graph.listing.left_out,
        seconds=time.perf_counter() - started,
    )


def _build_sources(
    graph: MixtureGraph, reporter: Reporter, pool: Pool, *, is_share: bool
) -> list[StageFailure]:
    """Make what the sources of a mixture lack, up to their splits; return what failed.

    Raises: ConfigError where their tokenizers are not one, before anything is tokenized, where they
    cannot be mixed as the config says, and for a share of a mixture.
    """
    if is_share:
        raise ConfigError(
            where="--shard",
            expected="a dataset with raw files of its own",
            found=f"{graph.dataset.name}, a mixture, which is made of all files of its sources",
            remedy=f"run the shards of {', '.join(graph.of_sources)}, then this one whole",
        )
    missing = [
        source
        for source in graph.of_sources.values()
        if not all(of.is_made for of in source.outputs_for_mixtures())
    ]
    failed = list[StageFailure]()
    for source in missing:
        make_output(source, TOKENIZER.name, TOKENIZER.name)
    if missing:
        graph.check_tokenizers()
    for source in missing:
        until = for_mixtures(source.stages)[-1].name
        build = _Build(source, reporter, pool, is_partial=False, is_share=False, until=until)
        build.run(list(source.partitions))
        note_failures(source, build.failed)
        name = source.dataset.name
        failed += [StageFailure(of.stage, f"{name}/{of.name}", of.error) for of in build.failed]
    if not failed:
        _ = graph.mixture_plan
    return failed


class _Build:
    """One run over all stages; a file that failed in one stage is left out of the next."""

    def __init__(
        self,
        graph: BuildGraph,
        reporter: Reporter,
        pool: Pool,
        *,
        is_partial: bool,
        is_share: bool,
        until: str | None,
    ) -> None:
        self.graph = graph
        self.reporter = reporter
        self.pool = pool
        self.is_partial = is_partial
        self.is_share = is_share
        self.stages = graph.stages if until is None else up_to(until, graph.stages)
        self.tried: set[str] = set()
        """The partitions that it has begun with."""
        self.partitions: dict[str, RawPartition] = {}
        """Those of which nothing has failed so far."""
        self.made: dict[Output, StageResult] = {}
        self.failed: list[StageFailure] = []

    def run(self, keys: Sequence[str]) -> None:
        if isinstance(self.graph, MixtureGraph):
            how = {"is_share": self.is_share}
            self.failed += _build_sources(self.graph, self.reporter, self.pool, **how)
            if self.failed:
                return
            keys = [*keys, *(() if self.is_partial else self.graph.take_more())]
        self.reporter.stage(RAW, num_outputs=len(keys), num_bytes=0)
        with ThreadPoolExecutor(max_workers=1) as hashing:
            hashing.submit(self.graph.read_raw_files, keys)
            tokenizer = self._load_engine(keys)
        self._begin(keys)
        if tokenizer is not None:
            self.reporter.stage(TOKENIZER.name, num_outputs=1, num_bytes=0)
            self._add(tokenizer.output, tokenizer)
        while not self._make_all():
            self.made = {of: self.made[of] for of in self.made if of.step.decides_all}
            known = self.graph.partitions  # of a limited dataset the first ones again
            self.partitions = {key: of for key, of in self.partitions.items() if key in known}
            self.tried &= known.keys()
        if any(made.is_new for made in self.made.values()):
            self.graph.dataset.store.pack_manifests(self.graph.folder)

    def _begin(self, keys: Sequence[str]) -> None:
        self.tried.update(keys)
        for key in keys:
            try:
                self.partitions[key] = self.graph.raw(key)
            except Exception as error:
                self._fail(RAW, key, error)

    def _make_all(self) -> bool:
        """Make the outputs stage by stage, as far as it goes.

        Returns False where gigatoken turned out to be wrong: all tokens are others now, and so is
        what was made of them.
        """
        held: set[str] = set()  # stages that did not begin
        for stage in self.stages:
            outputs = list(self.graph.outputs_of(stage.name, list(self.partitions)))
            if outputs and not self._may_begin(outputs[0], held):
                held.add(stage.name)
                continue
            for _, of_packing in groupby(outputs, attrgetter("packing")):
                if not self._make_step(stage, [*of_packing]):
                    return False
        return True

    def _make_step(self, stage: Stage, outputs: Sequence[Output]) -> bool:
        """Make the outputs of a stage, of sequences those of one packing; return as `_make`."""
        known = [of for of in outputs if of.key in self.partitions or not of.is_of_file]
        todo = [output for output in known if output not in self.made]
        if todo or not stage.decides_all:
            num_bytes = sum(self.partitions[of.key].num_bytes for of in todo if of.is_of_file)
            self.reporter.stage(stage.name, num_outputs=len(todo), num_bytes=num_bytes)
        while todo:
            if not self._make(todo):
                return False
            todo = self._more_tokens() if stage.has_engine else []
        return True

    def _make(self, todo: Sequence[Output]) -> bool:
        """Make outputs; return False where gigatoken turned out to be wrong on one."""
        with closing(
            make_outputs(self.graph, todo, self.pool, advance=self.reporter.advance)
        ) as results:
            for output, result in results:
                if isinstance(result, EngineDiffersError):
                    self.graph.disqualify(f"{result.where}: {result.found}")
                    return False
                self._add(output, result)
        return True

    def _more_tokens(self) -> list[Output]:
        """Return the tokens of files that a limit of the whole dataset takes after those that are
        made now; none where it is reached, or only some files are to be built: then those that
        follow are known now, and what is made of all files waits for them."""
        known = self.graph.take_more()
        keys = [] if self.is_partial else known
        self._begin(keys)
        more = [key for key in keys if key in self.partitions]
        if more:
            num_bytes = sum(self.partitions[key].num_bytes for key in more)
            self.reporter.more(num_outputs=len(more), num_bytes=num_bytes)
        return [self.graph.tokens(key) for key in more]

    def _add(self, output: Output, result: StageResult | Exception) -> None:
        if isinstance(result, StageResult):
            self.made[output] = result
            self.reporter.made(result)
            return
        self._fail(output.stage, output.name, result, output.packing)
        if output.is_of_file:
            del self.partitions[output.key]

    def _may_begin(self, output: Output, held: Set[str]) -> bool:
        """Return whether a stage, with this output, can begin: what all of it is made from is
        there. `held`: the stages before it that could not."""
        inputs = output.direct_inputs()
        if not held.isdisjoint(of.stage for of in inputs):
            return False
        of_all = [of for of in inputs if of.is_of_all]
        if self.is_share and (of_all or not (output.is_of_file or output.step.decides_all)):
            return False
        if not all(map(self._is_there, inputs)):
            return False
        if output.is_of_file:
            return all(self._are_all_there(output.stage, of) for of in of_all)
        if not of_all:
            return True
        is_built = all(map(self.graph.is_built, self.graph.partitions))
        is_whole = not self.failed and (is_built or not self.is_partial)
        return is_whole and self.reporter.may_export()

    def _is_there(self, of: Input) -> bool:
        """Return whether an input that the dataset has once, as the tokenizer, was made."""
        is_own = of.stage in self.graph.steps
        if of.is_raw or of.dataset or not is_own or self.graph.is_of_file(of.stage):
            return True
        return self.graph.output(of.stage, variant=of.variant) in self.made

    def _are_all_there(self, stage: str, of: Input) -> bool:
        """Return whether the outputs of all partitions are there; what is missing is reported once,
        and not for every file."""
        if of.dataset:  # which was built before
            return True
        partitions = self.graph.partitions
        outputs = {key: self.graph.output(of.stage, key, of.variant) for key in partitions}
        waiting = [key for key, output in outputs.items() if not output.is_made]
        if waiting and self.failed:
            error = MissingOutputError(
                where=f"{self.graph.dataset.name}: {stage}",
                expected=f"the {of.stage} of all {len(partitions):,} partitions{of.why_all}",
                found=f"none of {first_five(waiting)}",
                remedy=of.remedy,
            )
            self._fail(stage, "all files", error)
        return not waiting

    def _load_engine(self, keys: Sequence[str]) -> StageResult | None:
        """Make the tokenizer and load its engine, or start the processes that will need it, while
        the raw files are hashed.

        Hashing leaves the interpreter free, and this takes half a second. Returns the tokenizer
        if it came to be made here. What goes wrong here goes wrong again, and is reported, where
        the tokenizer is made.
        """
        made = None
        if self.graph.of_sources:  # it tokenizes nothing
            return None
        dataset = self.graph.dataset
        if any((dataset.folder / TOKENS.path / key).is_dir() for key in keys):
            return None
        sources = (of for key in keys for of in self.graph.partitions[key])
        local = (Path(of.url) for of in sources if of.is_local)
        sizes = {path: path.stat().st_size for path in local if path.exists()}
        num_bytes = sum(text_bytes_of(*of, dataset.documents) for of in sizes.items())
        is_done_here = is_small(num_bytes, num_outputs=len(keys))
        if not is_done_here:
            self.pool.start()
        if dataset.tokenizer.kind != "trained":
            with suppress(TokflowError, OSError):
                made = make_output(self.graph, TOKENIZER.name, TOKENIZER.name)
                if is_done_here:
                    engine_of(self.graph)
        return made

    def in_order(self) -> Iterator[StageResult]:
        """Yield what is there now in the order of the stages and of the keys."""
        for output in self.graph.outputs() if self.made else ():
            if (made := self.made.get(output)) is not None:
                yield made

    def _fail(self, stage: str, name: str, error: Exception, packing: str = "") -> None:
        self.failed.append(StageFailure(stage, name, error, packing))
        self.reporter.failed(self.failed[-1])

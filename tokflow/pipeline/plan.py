"""Plan of a run: what it would build, and why. Only checksums of raw files are written, and an
index of manifests. A missing output is compared with the newest one of the same stage and file in
the store: what differs between the two recipes is the reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tokflow.errors import ConfigError, TokflowError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.failures import FAILURES_NAME, PastFailure, failure_key
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixture import MixtureGraph, graph_of
from tokflow.pipeline.output import Output
from tokflow.pipeline.raw_files import check_first_columns, read_kept
from tokflow.pipeline.results import StageFailure, Totals
from tokflow.pipeline.stages import for_mixtures
from tokflow.pipeline.staleness import Cause, cause_of
from tokflow.raw import GroupProposal, LeftOut
from tokflow.split.stage import MIXED_SPLIT
from tokflow.stage import RAW
from tokflow.store.manifest import RUN_NAME, Recipe, read_run
from tokflow.store.stored_outputs import newest_first, newest_output
from tokflow.store.versions import changed_since
from tokflow.tokenizers.engines.reference import reference_change
from tokflow.tokenizers.stage import tokenizer_source
from tokflow.tokens.stage import TOKENS


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedOutput:
    """One output: there already, or to be made."""

    output: Output = field(repr=False)
    cause: Cause | None = None
    """None: it is there."""
    details: tuple[str, ...] = ()
    """Differences, or what it waits for, in plain words."""
    fingerprint: str | None = None
    """None where it cannot be known before another output is made."""
    num_bytes: int = 0
    """Size of the raw files it goes back to."""
    estimated_seconds: float = 0.0
    """Likely duration, to hundredths."""
    failure: PastFailure | None = None
    """The last failure to make it from the same file by the same config."""

    @property
    def stage(self) -> str:
        """The name of the stage that makes it."""
        return self.output.stage

    @property
    def name(self) -> str:
        """The partition key; of an export, its name; of the tokenizer, `tokenizer`."""
        return self.output.name

    @property
    def packing(self) -> str:
        """Name of the packing of sequences, where it is not the dataset's; else empty."""
        return self.output.packing

    @property
    def folder(self) -> Path | None:
        """The folder of its files; None without a fingerprint."""
        return self.output.folder if self.fingerprint else None

    @property
    def is_made(self) -> bool:
        """True if the output is there."""
        return self.cause is None

    @property
    def reason(self) -> str:
        """The cause with its details on one line."""
        return f"{self.cause} ({'; '.join(self.details)})" if self.details else str(self.cause)


@dataclass(frozen=True, kw_only=True)  # without slots, since it keeps what is missing
class Plan:
    """Everything that a run would do now."""

    graph: BuildGraph
    """The outputs of the dataset, as they were looked for; a build takes it on."""
    planned: tuple[PlannedOutput, ...]
    """Every output, in the order of the stages."""
    bad: tuple[StageFailure, ...] = ()
    """Raw files, or the tokenizer, that keep outputs from being made."""
    num_files: int
    """Raw files that the plan is about."""
    num_remote: int = 0
    """Those of them that are elsewhere and taken as they were fetched last: not those of the hub
    and of object stores, whose versions are listed."""
    num_elsewhere: int = 0
    """Other raw files that are not built, without which there is no export."""
    totals: Totals = field(repr=False)
    """Counts of the outputs that are there, for notices."""

    @property
    def own(self) -> list[PlannedOutput]:
        """The outputs of the dataset itself, without those of a mixture's sources."""
        return [of for of in self.planned if of.output.graph is self.graph]

    @property
    def of_mixture(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The tokens that a mixture is to take of each source and part; {} as long as something of
        its sources is missing, and of other datasets."""
        if not isinstance(self.graph, MixtureGraph) or self.bad:
            return {}
        try:
            return self.graph.mixture_plan.planned()
        except TokflowError:
            return {}

    @property
    def is_open(self) -> bool:
        """True if more files may follow: `documents.limit`, of scope dataset, is not reached by
        those of which the tokens are there."""
        return self.graph.limited is not None and self.graph.limited.is_open

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Files that the patterns of the raw files match and that are not read."""
        return self.graph.listing.left_out

    def library_changes(self, *, of_engines: bool = False) -> list[str]:
        """Return a sentence for each library, references of tokenizers first, that has another
        version now than when outputs, or those of an engine, were made. Reads every run.json."""
        made = [planned for planned in self.planned if planned.is_made]
        folders = [of.folder for of in made if of.output.step.has_engine or not of_engines]
        runs = [read_run(folder) for folder in folders if folder is not None]
        references = [
            f"{change}; `tokflow verify {of.graph.dataset.name} --reference` compares all tokens"
            for of in ([] if of_engines else [of.output for of in made])
            if of.step.decides_all and (change := reference_change(of.stored))
        ]
        return [*references, *changed_since(run.get("versions", {}) for run in runs)]

    @cached_property
    def missing(self) -> tuple[PlannedOutput, ...]:
        """The outputs that a run would make."""
        return tuple(planned for planned in self.planned if not planned.is_made)

    @property
    def is_up_to_date(self) -> bool:
        """True if a run would find nothing to do."""
        return not (self.missing or self.bad)

    @property
    def num_bytes(self) -> int:
        """Raw bytes that would be tokenized."""
        return sum(planned.num_bytes for planned in self.missing if planned.output.step.has_engine)

    @property
    def estimated_seconds(self) -> float:
        """Likely duration of a run."""
        return sum(planned.estimated_seconds for planned in self.missing)


def proposed_group(graph: BuildGraph) -> GroupProposal | None:
    """Return how to group the files that are identified, where many small ones are a partition
    each and nothing was built of them."""
    dataset, files = graph.dataset, graph.known_files.values()
    is_of_all = dataset.mixture or dataset.documents.limit.scope == "dataset"
    if is_of_all or dataset.raw.group or (graph.folder / TOKENS.path).is_dir():
        return None
    return GroupProposal.of(len(files), sum(of.num_bytes for of in files))


def make_plan(
    dataset: Dataset,
    *,
    partitions: Sequence[str] | None = None,
    progress: Callable[[int, int | None], None] | None = None,
    graph: BuildGraph | None = None,
    reads_once: bool = False,
) -> Plan:
    """Return what `build_dataset` with the same arguments would make.

    Local raw files that are not known yet are hashed, `progress` counts their bytes; no server is
    asked about others. A raw file that cannot be read is reported in `bad`. `graph`: an offline one
    whose files were listed just now; without it `check_first_columns` comes first. `reads_once`: a
    build follows, as `BuildGraph` has it.

    Raises: ConfigError.
    """
    is_checked = graph is not None
    if graph is None:
        graph = graph_of(dataset, offline=True, reads_once=reads_once)
        is_checked = not (graph.folder / TOKENS.path).is_dir()
        if is_checked:  # before files are hashed; later those that were built are known
            check_first_columns(graph.partitions, graph.documents)
    keys = graph.selected_keys(partitions)
    graph.read_raw_files(list(graph.partitions), progress=progress)
    planner = _Planner(graph)
    num_elsewhere = planner.look_at_all(keys, is_partial=partitions is not None)
    graph.write_indexes()
    if not is_checked and any(of.output.step.has_engine and of.cause for of in planner.planned):
        check_first_columns(graph.partitions, graph.documents)
    return Plan(
        graph=graph,
        planned=tuple(planner.planned),
        bad=tuple(planner.bad),
        num_files=sum(len(graph.partitions[key]) for key in planner.keys),
        num_remote=sum(of.may_differ for key in planner.keys for of in graph.partitions[key])
        + sum(of.source.may_differ for of in graph.listing.bad.values()),
        num_elsewhere=num_elsewhere,
        totals=planner.totals,
    )


_OTHER: tuple[Cause, ...] = ("file changed", "config changed", "code changed", "input changed")
"""Causes by which an output that was made before becomes another."""


class _Planner:
    """One look at all outputs, in the order in which a run makes them."""

    def __init__(self, graph: BuildGraph, totals: Totals | None = None) -> None:
        self.graph = graph
        self.totals = Totals() if totals is None else totals
        self.planned: list[PlannedOutput] = []
        self.bad: list[StageFailure] = []
        self.keys: list[str] = []
        """Partitions that it is about."""
        self.sizes: dict[str, int] = {}
        """Bytes of each partition's raw files, those on this disk."""
        self.unfetched: set[str] = set()
        self.tokenizer_causes: set[Cause] = set()
        """Why tokenizers must be made; while there are any, all other outputs wait for them."""
        self.failures = read_kept(graph.folder / FAILURES_NAME, PastFailure)
        dataset = graph.dataset
        counted = {
            of.stage
            for step in dataset.stages
            for of in (step.all_inputs(dataset) if step.is_of_file else ())
            if of.reach == "all"
        }
        steps = [of for of in dataset.stages if of.decides_all or of.name in counted]
        self.asked_again = set(steps)
        """Stages whose manifests are needed for what comes after them."""

    def look_at_all(
        self, keys: Sequence[str], *, is_partial: bool, until: str | None = None
    ) -> int:
        """Plan the outputs of `keys` and of the dataset; count other files that are not built."""
        if isinstance(self.graph, MixtureGraph):
            self._look_at_sources(self.graph)
            self.graph.take_more()
        partitions = self.graph.partitions
        keys = self.keys = [of for of in (keys if is_partial else partitions) if of in partitions]
        if not self.graph.of_sources:
            for key, sources in partitions.items():
                try:
                    self.sizes[key] = self.graph.raw(key).num_bytes
                except (TokflowError, OSError) as error:
                    if all(source.is_local for source in sources):
                        self.bad.append(StageFailure(RAW, key, error))
                    else:
                        self.unfetched.add(key)
                        self.sizes[key] = sum(of.num_bytes or 0 for of in sources)
        chosen = set(keys)
        elsewhere = [key for key in partitions if key not in chosen]
        num_elsewhere = len(self.graph.unbuilt(elsewhere)) if elsewhere else 0
        if self.bad and self.graph.of_sources:
            return num_elsewhere
        bad = {failure.name for failure in self.bad}
        for output in self.graph.outputs([key for key in keys if key not in bad], until=until):
            if output.is_of_all_files and is_partial and num_elsewhere:
                continue
            if not self._look_at(output):
                break
        return num_elsewhere

    def _look_at_sources(self, mixture: MixtureGraph) -> None:
        """Plan the sources of a mixture up to their splits, and check that they can be mixed."""
        for graph in mixture.of_sources.values():
            of_source = _Planner(graph, self.totals)
            needed = for_mixtures(graph.stages)
            of_source.asked_again.update(needed)
            of_source.look_at_all(list(graph.partitions), is_partial=False, until=needed[-1].name)
            self.planned += of_source.planned
            self.tokenizer_causes |= of_source.tokenizer_causes
            self.bad += of_source.bad
            names = [name for name, of in mixture.takes.items() if of is graph]
            found = of_source.sizes.items()
            self.sizes |= {f"{name}/{key}": num for name in names for key, num in found}
        if not any(planned.cause for planned in self.planned):
            try:
                _ = mixture.mixture_plan
            except ConfigError as error:
                self.bad.append(StageFailure(MIXED_SPLIT.name, mixture.dataset.name, error))

    def _look_at(self, output: Output) -> bool:
        """Plan an output; return whether anything can be planned after it."""
        step, recipe = output.step, None
        cause: Cause | None = "missing"
        details: tuple[str, ...] = ("waits for the raw file to be fetched",)
        if not (step.is_of_file and output.key in self.unfetched):
            try:
                if self.tokenizer_causes and not step.decides_all:
                    cause, details = self._cause_of_waiting(output)
                else:
                    recipe = output.recipe
                    cause, details = cause_of(self.graph, output)
                if cause is None:
                    self.totals.add(output.manifest(), output.name)
            except (TokflowError, OSError) as error:
                if recipe is not None or (step.decides_all and not self.unfetched):
                    self.bad.append(StageFailure(output.stage, output.name, error))
                    return not step.decides_all
                cause, details = self._cause_of_waiting(output)
        self._plan(output, recipe, cause, details)
        if step not in self.asked_again:
            output.forget()
        return True

    def _cause_of_waiting(self, output: Output) -> tuple[Cause, tuple[str, ...]]:
        """Return why an output waits: one made with another tokenizer is stale, not missing."""
        is_other = not self.tokenizer_causes.isdisjoint(_OTHER) and not output.is_first_of_kind
        if is_other and newest_output(self.graph.store, output.place):
            return "input changed", ("the tokenizer changes, and with it all token ids",)
        awaited = "the tokens of all files, which decide what it must be"
        if self.graph.of_sources:
            awaited = "the splits of its sources"
        elif self.tokenizer_causes:
            awaited = "the tokenizer"
        elif self.unfetched:
            awaited = "raw files to be fetched"
        elif self.bad:
            awaited = f"{self.bad[0].name}, which cannot be read"
        return "missing", (f"waits for {awaited}",)

    def _plan(
        self, output: Output, recipe: Recipe | None, cause: Cause | None, details: tuple[str, ...]
    ) -> None:
        if output.step.is_of_file:
            num_bytes = self.sizes.get(output.key, 0)
        elif not output.step.decides_all:
            num_bytes = sum(self.sizes.values())
        else:
            trained_on = tokenizer_source(output).raw_files if recipe else {}
            num_bytes = sum(raw.num_bytes for raw in trained_on.values())
        seconds = 0.0
        if cause is not None:
            self.tokenizer_causes |= {cause} if output.step.decides_all else set()
            runs = () if output.is_first_of_kind else newest_first(output.place, RUN_NAME)
            took = read_run(runs[0]).get("seconds") if runs else None
            cost = output.step.cost
            seconds = cost.seconds + cost.per_byte * num_bytes if took is None else float(took)
        failure = None
        if cause and self.failures:  # of it, or of the raw file that its tokens wait for
            is_unfetched = output.step.has_engine and output.key in self.unfetched
            stage = RAW if is_unfetched else output.stage
            key = failure_key(self.graph, stage, output.name, output.packing)
            failure = self.failures.get(key or "")
        self.planned.append(
            PlannedOutput(
                output=output,
                cause=cause,
                details=details,
                fingerprint=output.fingerprint if recipe else None,
                num_bytes=num_bytes,
                estimated_seconds=round(seconds, 2),
                failure=failure,
            )
        )

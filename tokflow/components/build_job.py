"""All assets of a dataset as one step, whose body is the build, and the job of them all.

A run without a partition key brings the list of files up to date and builds what is missing; one
with keys builds these. Both stop at what is selected, and report output by output what they make.
"""

import signal
import threading
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any

import dagster as dg

from tokflow.components import assets
from tokflow.components.checks import again_if_fetched, check_specs, recheck
from tokflow.components.code_server import reload_code
from tokflow.components.history import definition_digest
from tokflow.components.instance import end_lost_runs, process_tags
from tokflow.components.recorded_build import BuildOptions, RecordedBuild, build_in_run
from tokflow.errors import TokflowError, message_of
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixture import graph_of
from tokflow.pools import Workers

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
"""Run config without Dagster's log, for a terminal with a progress display."""

MAX_RETRIES_TAG = "dagster/max_retries"
"""Tag of a run of this process, which Dagster's daemon cannot repeat and would promise to."""

UNRECORDED = {"__source_asset_observation__": True}
"""Metadata by which Dagster 1.13 enters no event for an output: each has its own already, and one
of Dagster's would give all partitions of a run one version (dagster issues 34013, 18649). Without
an output, what is downstream in the run, anybody's, is skipped without a word."""

DEFINITION_TAG = ".dagster/tokflow_definition"
"""Tag of the step of a dataset: a digest of its YAML and code. The snapshot that Dagster keeps of
the job of a run has that of the code server."""

RESOURCE = "tokflow_workers"
"""Its key in a run's config."""

Body = Callable[[dg.AssetExecutionContext], Iterator[Any]]


class PoolKind(Enum):
    """Kind of pool. A text could be `{env: NAME}`, and an error would show that variable."""

    local = "local"
    ray = "ray"


class WorkersResource(dg.ConfigurableResource[None]):
    """Processes that a step works with; by default one for each core, or `TOKFLOW_JOBS`."""

    jobs: int | None = None
    """Their number, 1 or more."""
    pool: PoolKind | None = None
    """`ray` for those of a Ray cluster, `local` for those of this machine; by default as
    `TOKFLOW_POOL` says, else local."""

    def of_build(self) -> Workers:
        """Return them as a build takes them."""
        return {"jobs": self.jobs, "pool": self.pool.value if self.pool else None}


WORKERS = WorkersResource()


def build_asset(dataset: Dataset, body: Body | None = None) -> dg.AssetsDefinition:
    """Return all assets of a dataset as one step, which can be asked for any of them, and for their
    checks; `body` is what it does, by default the build of what is selected."""
    keys = assets.asset_keys(dataset)

    def build(context: dg.AssetExecutionContext) -> Iterator[Any]:
        yield from (body or partial(_build_selected, dataset))(context)
        for key in [key for key in keys.values() if key in context.selected_asset_keys]:
            yield dg.Output(None, key.to_python_identifier(), metadata=UNRECORDED)

    with warnings.catch_warnings():
        # Backfill policies and a few more are called beta though they stay as they are in 1.13.
        warnings.simplefilter("ignore", category=dg.BetaWarning)
        warnings.simplefilter("ignore", category=dg.PreviewWarning)
        return dg.multi_asset(
            name=f"{assets.build_job_name(dataset)}_all",
            specs=assets.asset_specs(dataset),
            check_specs=[of for (stage, _), key in keys.items() for of in check_specs(stage, key)],
            can_subset=True,
            backfill_policy=dg.BackfillPolicy.single_run(),
            pool=dataset.pool,
            op_tags={DEFINITION_TAG: definition_digest(dataset)},
            resource_defs={RESOURCE: WORKERS},
        )(build)


def asset_job(
    dataset: Dataset, step: dg.AssetsDefinition, keys: Iterable[dg.AssetKey] | None = None
) -> dg.JobDefinition:
    """Return the job of some assets of a dataset, by default all; `step`: as `build_asset`."""
    name, keys = assets.build_job_name(dataset), keys or assets.asset_keys(dataset).values()
    # Checks that are selected are red where a build had nothing new to check.
    selection = dg.AssetSelection.assets(*keys).without_checks()
    job = dg.define_asset_job(
        name,
        selection=selection,
        description=f"Builds {dataset.name}: registers new raw files, makes what is missing or has "
        "changed, of all files, and the exports, and checks them. To launch it for all files, "
        "choose Launchpad, not a partition: nothing needs to be filled in.",
        tags=dataset.tags,
        executor_def=dg.in_process_executor,
    )
    return dg.Definitions(assets=[step], jobs=[job]).resolve_job_def(name)


def _build_selected(dataset: Dataset, context: dg.AssetExecutionContext) -> Iterator[Any]:
    """Build what a run selects, of its partitions or of all; compute checks selected alone."""
    if not context.selected_asset_keys:
        yield from recheck(dataset, context.selected_asset_check_keys)
        return
    _reload_if_edited(dataset, context)
    is_keyed = context.has_partition_key or context.has_partition_key_range
    keys = assets.asset_keys(dataset)
    asked = [asset for asset, key in keys.items() if key in context.selected_asset_keys]
    is_whole = not is_keyed and len(asked) == len(keys)
    options = BuildOptions(
        partitions=sorted(context.partition_keys) if is_keyed else None,
        asked=None if is_whole else asked,
        workers=getattr(context.resources, RESOURCE).of_build(),
    )
    try:
        recorded = build_in_run(context, graph_of(dataset, offline=True), options)
    except (TokflowError, OSError) as error:
        message = message_of(error, where=dataset.name)
        raise dg.Failure(f"{dataset.name}: {message}", allow_retries=False) from error
    yield from recorded.checks
    if recorded.failure is not None:
        raise again_if_fetched(recorded.failure, context)


def _reload_if_edited(dataset: Dataset, context: dg.AssetExecutionContext) -> None:
    """Let the pages of Dagster show the dataset that this run builds, where its YAML or code was
    edited after the code location was loaded, or say on the run what to press."""
    job = context.instance.get_job_snapshot(str(context.run.job_snapshot_id))
    loaded = [of.tags.get(DEFINITION_TAG) for of in job.node_defs_snapshot.op_def_snaps]
    if definition_digest(dataset) in loaded:
        return
    edited = f"{dataset.name} was edited after its code location was loaded"
    if reload_code(context.run):
        context.log.info("%s, which was reloaded: pages show what this run builds", edited)
    else:
        said = "pages show it as it was, and as unsynced what this run builds"
        context.log.warning("%s: %s, until you press Reload in the tab Deployment", edited, said)


def run_build_job(
    instance: dg.DagsterInstance, graph: BuildGraph, options: BuildOptions | None = None
) -> RecordedBuild:
    """Execute the job in this process, as a run of `instance`.

    A file that cannot be built, or a check that fails, makes the run a failed one and raises
    nothing here. The report is not drawn, so that nobody waits for it; the next run that Dagster
    starts draws it.

    Raises: what kept anything from being built.
    """
    results: list[RecordedBuild] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    options = options or BuildOptions()

    def body(context: dg.AssetExecutionContext) -> Iterator[Any]:
        _restore(handlers)  # Dagster raises the same for both, and sets no SIGTERM back
        results.append(build_in_run(context, graph, options))
        if (failure := results[0].failure) is not None:
            raise failure
        yield from ()

    end_lost_runs(instance)
    dataset, run_id = graph.dataset, str(uuid.uuid4())
    tags, is_whole = {**process_tags(run_id), MAX_RETRIES_TAG: "0"}, options.partitions is None
    keys = assets.asset_keys(dataset)
    keys.pop((assets.REPORT, ""), None)
    made = [of for (at, _), of in keys.items() if is_whole or assets.is_partitioned(dataset, at)]
    job = asset_job(dataset, build_asset(dataset, body), made)
    try:
        with suppress(dg.Failure):
            job.execute_in_process(QUIET, instance=instance, run_id=run_id, tags=tags)
    except dg.DagsterExecutionInterruptedError as error:
        raise KeyboardInterrupt from error
    finally:
        _restore(handlers)
    return results[0]


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler)

"""Automation: the conditions, sensors, jobs and schedule that build without being asked."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from tokflow.build.dagster_fields import dagster_name
from tokflow.build.dataset import Dataset
from tokflow.components.dagster_names import scan_job_name
from tokflow.components.file_partitions import FileChanges, look_at_sources, sync_files
from tokflow.errors import TokflowError, message_of

Condition = dg.AutomationCondition[Any]

LOOK_TAG = "tokflow/look"
"""On a scan: the digest of the look that asked for it."""

SENSOR_SECONDS = 60
"""A look at 1,000 local files that are unchanged takes some 50 ms."""


NUM_GENERATIONS = 3
"""Generations of parents that must be up to date first: from an export up to the tokens."""


def when_outdated(other_runs: Sequence[dg.AssetKey]) -> Condition:
    """Return the condition of every asset: its parents changed, it is missing, or its code is new.

    Each clause is needed: `eager` ignores what was missing when the sensor started, and new code;
    without `execution_failed` a bad file would be tried again on every tick. Parents in
    `other_runs` have other partitions, so they are built in other runs; the asset waits until
    they, and what they are made from, are up to date.
    """
    when = dg.AutomationCondition
    is_ready = ~when.any_deps_missing() & ~when.in_progress()
    changed: Condition = when.eager()
    missing: Condition = when.missing() & ~when.execution_failed() & is_ready
    is_new_code: Condition = when.code_version_changed()
    new_code: Condition = is_new_code.since_last_handled() & is_ready
    waits: Condition = when.any_deps_in_progress()
    if other_runs:
        parents = dg.AssetSelection.assets(*other_runs)
        waits = waits | when.any_deps_match(_is_behind()).allow(parents)
    return ((changed | missing | new_code) & ~waits).with_label("outdated")


def _is_behind() -> Condition:
    """Return whether a parent, up to NUM_GENERATIONS up, is newer than its child.

    Dagster's own `will_be_requested` says this only of parents that have the same partitions; and
    a file which fails stays behind until it is mended, so that no export is tried without it.
    """
    when = dg.AutomationCondition
    has_newer_parent: Condition = when.any_deps_match(when.newly_updated())
    is_new_code: Condition = when.code_version_changed()
    changed: Condition = has_newer_parent | is_new_code
    is_behind: Condition = changed.since(when.newly_updated())
    for _ in range(NUM_GENERATIONS - 1):
        is_behind = is_behind | when.any_deps_match(is_behind)
    return is_behind


def automation_sensor(dataset: Dataset) -> dg.AutomationConditionSensorDefinition:
    """Return the sensor that evaluates the condition; on unless somebody turns it off."""
    return dg.AutomationConditionSensorDefinition(
        name=f"{dagster_name(dataset.name)}_automation",
        target=dg.AssetSelection.groups(dagster_name(dataset.name)),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Builds what is outdated or missing in {dataset.name}.",
    )


def scan_job(dataset: Dataset) -> dg.JobDefinition:
    """Return the job that registers new raw files and retires removed ones."""

    @dg.op(
        name=f"{dagster_name(dataset.name)}_sync_files",
        description="Bring partitions and raw versions up to date.",
    )
    def sync(context: dg.OpExecutionContext) -> None:
        try:
            context.log.info(str(sync_files(context.instance, dataset)))
        except (TokflowError, OSError) as error:
            message = message_of(error, where=dataset.name)
            raise dg.Failure(f"{dataset.name}: {message}", allow_retries=False) from error

    @dg.job(
        name=scan_job_name(dataset),
        description=f"Looks for new, changed and removed raw files of {dataset.name}; builds "
        "nothing.",
        tags=dataset.tags,
        executor_def=dg.in_process_executor,
    )
    def scan() -> None:
        sync()

    return scan


def files_sensor(dataset: Dataset, job: dg.JobDefinition) -> dg.SensorDefinition:
    """Return the sensor that keeps partitions and raw versions up to date.

    What takes long (many files, or much to hash) it leaves to the scan job: a tick has 60 s. The
    same look is scanned once, and again after each scan that failed or was canceled.
    """

    @dg.sensor(
        name=f"{dagster_name(dataset.name)}_files",
        job=job,
        minimum_interval_seconds=SENSOR_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Looks for new, changed and removed raw files of {dataset.name}.",
    )
    def files(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        try:
            look = look_at_sources(context.instance, dataset)
            if not look.is_quick:
                return dg.SensorResult(run_requests=[_scan_of(look, context.instance)])
            synced = sync_files(context.instance, dataset, look)
        except (TokflowError, OSError) as error:
            return dg.SkipReason(message_of(error, where=dataset.name))
        return dg.SkipReason(str(synced))

    return files


def _scan_of(look: FileChanges, instance: dg.DagsterInstance) -> dg.RunRequest:
    """Return a request that Dagster ignores while, and after, a scan of the same look goes well."""
    tags = {LOOK_TAG: look.digest}
    statuses = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
    num_ended = instance.get_runs_count(dg.RunsFilter(tags=tags, statuses=statuses))
    return dg.RunRequest(run_key=f"{look.digest}-{num_ended}", tags=tags)


def scan_schedule(dataset: Dataset, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Return a schedule of the scan job, off by default: for who turns the sensor off.

    Listing a bucket every minute costs money.
    """
    return dg.ScheduleDefinition(
        name=f"{dagster_name(dataset.name)}_hourly_scan",
        job=job,
        cron_schedule="0 * * * *",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Scans the raw files of {dataset.name} every hour, in place of the sensor "
        f"{dataset.name}_files.",
    )

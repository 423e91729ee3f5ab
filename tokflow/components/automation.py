"""Automation: the sensor that looks at raw files, the scan job, and the schedule of a build."""

import time
from collections.abc import Sequence
from dataclasses import replace

import dagster as dg
import msgspec

from tokflow.components.broken import BrokenDataset
from tokflow.components.dagster_names import scan_job_name
from tokflow.components.decisions import Decision, Memory, decide, read_memories
from tokflow.components.failed_outputs import LISTING, mark_failed
from tokflow.components.file_partitions import sync_files
from tokflow.errors import TokflowError, message_of
from tokflow.pipeline.dagster_fields import dagster_name
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import as_declared_now

SENSOR_NAME = "tokflow_files"

SENSOR_SECONDS = 60
"""A look at 1,000 local files that are unchanged takes some 50 ms."""


def files_sensor(
    datasets: Sequence[Dataset],
    jobs: Sequence[dg.JobDefinition],
    broken: Sequence[BrokenDataset] = (),
) -> dg.SensorDefinition:
    """Return the sensor that looks at the raw files of all datasets of a code location.

    It asks for builds where `automation` is true, and else keeps Dagster's list of files up to
    date. `jobs`: those that build and scan the datasets; `broken`: datasets that cannot be loaded,
    whose check it records as failed. It is on if any dataset asks for automation, unless somebody
    turns it off.
    """
    is_on = any(dataset.automation for dataset in datasets)
    status = dg.DefaultSensorStatus

    @dg.sensor(
        name=SENSOR_NAME,
        jobs=list(jobs),
        minimum_interval_seconds=SENSOR_SECONDS,
        default_status=status.RUNNING if is_on else status.STOPPED,
        description="Looks for new, changed and removed raw files of all datasets, and builds "
        "those with `automation: true`.",
    )
    def files(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        memories = read_memories(context.cursor)
        decisions: dict[str, Decision] = {}
        for dataset, error in as_declared_now(datasets):  # a run loads it anew, too
            memory = memories.get(dataset.name, Memory())
            decision = decide(context.instance, dataset, memory, now=time.time())
            said = f"{decision.said}, as its YAML was when it was loaded, for now: {error}"
            decisions[dataset.name] = replace(decision, said=said) if error else decision
        failures = []
        for each in broken:
            known, memory = memories.get(each.name), Memory(because=str(each.error))
            failures += [each.evaluation()] if known != memory else []
            decisions[each.name] = Decision(memory, str(each.error))
        looked = {name: of.memory for name, of in decisions.items()}
        requests = [of.request for of in decisions.values() if of.request]
        said = "\n".join(f"{name}: {of.said}" for name, of in decisions.items())
        if requests:
            context.log.info(said)
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else said,
            cursor=msgspec.json.encode(looked).decode(),
            asset_events=failures,
        )

    return files


def scan_job(dataset: Dataset) -> dg.JobDefinition:
    """Return the job that registers new raw files and retires removed ones."""

    @dg.op(
        name=f"{dagster_name(dataset.name)}_sync_files",
        description="Bring partitions and raw versions up to date.",
    )
    def sync(context: dg.OpExecutionContext) -> None:
        try:
            context.log.info(str(sync_files(context.instance, dataset, with_status=True)))
        except (TokflowError, OSError) as error:
            mark_failed(context, dataset, [LISTING] if dataset.mixture is None else [])
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


def build_schedule(dataset: Dataset, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Return the schedule of a build, on unless somebody turns it off."""
    return dg.ScheduleDefinition(
        name=f"{dagster_name(dataset.name)}_schedule",
        job=job,
        cron_schedule=str(dataset.schedule),
        execution_timezone=dataset.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Builds {dataset.name} at its times.",
    )

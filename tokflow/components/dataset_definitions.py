"""Definitions of datasets: assets of each, jobs and schedules, and the sensor that they share."""

import warnings
from collections.abc import Mapping, Sequence

import dagster as dg

from tokflow.components.assets import make_assets
from tokflow.components.automation import build_schedule, files_sensor, scan_job
from tokflow.components.build_job import build_job
from tokflow.pipeline.dataset import Dataset

EXECUTORS: Mapping[str, dg.ExecutorDefinition] = {
    "in_process": dg.in_process_executor,
    "multiprocess": dg.multiprocess_executor,
}


def make_definitions(*datasets: Dataset) -> dg.Definitions:
    """Return all definitions of the datasets of a code location."""
    return dg.Definitions.merge(*map(asset_definitions, datasets), job_definitions(datasets))


def asset_definitions(dataset: Dataset) -> dg.Definitions:
    """Return the assets of a dataset, and the executor that it asks for."""
    with warnings.catch_warnings():
        # Backfill policies and a few more are called beta though they stay as they are in 1.13.
        warnings.simplefilter("ignore", category=dg.BetaWarning)
        warnings.simplefilter("ignore", category=dg.PreviewWarning)
        executor = EXECUTORS.get(dataset.executor or "")
        return dg.Definitions(assets=make_assets(dataset), executor=executor)


def job_definitions(datasets: Sequence[Dataset]) -> dg.Definitions:
    """Return the jobs and schedules of datasets, and the sensor that they share."""
    builds = {dataset.name: build_job(dataset) for dataset in datasets}
    jobs = [*builds.values(), *map(scan_job, datasets)]
    return dg.Definitions(
        jobs=jobs,
        schedules=[build_schedule(of, builds[of.name]) for of in datasets if of.schedule],
        sensors=[files_sensor(datasets, jobs)] if datasets else [],
    )

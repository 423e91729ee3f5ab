"""What Dagster calls the parts of a dataset: asset keys, partition set, jobs."""

import dagster as dg

from tokflow.build.dataset import Dataset

FILE_STAGES = ("raw", "tokens", "split", "sequences")
"""The assets that have one partition for each raw file, parents first."""


def asset_key(dataset: Dataset, *path: str) -> dg.AssetKey:
    """Return the key of one asset: `[<dataset>, <stage>]`, `[<dataset>, "exports", <name>]`."""
    return dg.AssetKey([dataset.name, *path])


def partition_set(dataset: Dataset) -> dg.DynamicPartitionsDefinition:
    """Return the partitions of a dataset: its raw files."""
    return dg.DynamicPartitionsDefinition(name=f"{dataset.name}_files")


def scan_job_name(dataset: Dataset) -> str:
    """Return the name of the job that looks for new, changed and removed raw files."""
    return f"{dataset.name}_scan"

"""Names that Dagster gives a dataset: keys of assets with their parents, partition set, jobs."""

import dagster as dg

from tokflow.pipeline.dagster_fields import dagster_name
from tokflow.pipeline.dataset import Dataset
from tokflow.stage import RAW, Stage
from tokflow.views.picture import has_report

FILES = "files"
"""The asset that lists the raw files."""

REPORT = "report"
"""The asset that is a page."""


def stage_named(dataset: Dataset, name: str) -> Stage | None:
    """Return the stage of a dataset with this name; None of an asset that no stage makes."""
    return next((of for of in dataset.stages if of.name == name), None)


def is_partitioned(dataset: Dataset, stage: str) -> bool:
    """Return whether an asset has one partition for each raw file, or group of them."""
    step = stage_named(dataset, stage)
    return step.is_of_file if step else stage == RAW


def asset_key(dataset: Dataset, stage: str, name: str = "") -> dg.AssetKey:
    """Return the key of one asset: `[<dataset>, <stage>]`, `[<dataset>, "exports", <name>]` or
    `[<dataset>, "sequences", <name of a packing>]`, after the prefix that the dataset asks for."""
    step = stage_named(dataset, stage)
    own = filter(None, [step.path if step else stage, name])
    return dg.AssetKey([*dataset.key_prefix, dataset.name, *own])


def packing_of_asset(dataset: Dataset, stage: str, name: str) -> str:
    """Return the variant of all partitions of an asset: the name of a packing, mostly empty."""
    return name if is_partitioned(dataset, stage) else ""


def asset_keys(dataset: Dataset) -> dict[tuple[str, str], dg.AssetKey]:
    """Return the keys of all assets by their stage and variant: the name of an export, or of the
    packing of sequences."""
    assets = [(RAW, ""), (FILES, "")] if dataset.mixture is None else []
    assets += [(of.name, variant) for of in dataset.stages for variant in of.variants(dataset)]
    assets += [(REPORT, "")] if dataset.report and has_report() else []
    return {asset: asset_key(dataset, *asset) for asset in assets}


def parents(
    dataset: Dataset, stage: str, name: str = ""
) -> dict[dg.AssetKey, dg.PartitionMapping | None]:
    """Return what an asset is made from, and whether from all partitions or its own alone."""
    all_files, own = dg.AllPartitionMapping(), dg.IdentityPartitionMapping()
    step = stage_named(dataset, stage)
    if stage == FILES:
        return {asset_key(dataset, RAW): all_files}
    if step is None:
        return _of_report(dataset) if stage == REPORT else {}
    found: dict[dg.AssetKey, dg.PartitionMapping | None] = {}
    sources = {of.name: of for of in dataset.sources}
    inputs = step.inputs(dataset, name)
    for of in inputs:
        having = sources.get(of.dataset, dataset)
        mapping = all_files if of.reach == "all" else own
        is_split_up = is_partitioned(having, of.stage)
        found[asset_key(having, of.stage, of.variant)] = mapping if is_split_up else None
    if step.has_latest and dataset.mixture is None:
        found[asset_key(dataset, FILES)] = None
    return found


def _of_report(dataset: Dataset) -> dict[dg.AssetKey, dg.PartitionMapping | None]:
    """Return the exports of a dataset or, without any, the last stage before them."""
    made = [(of, variant) for of in dataset.stages for variant in of.variants(dataset)]
    if exports := [(of, variant) for of, variant in made if of.has_latest]:
        return dict.fromkeys(asset_key(dataset, of.name, variant) for of, variant in exports)
    return {asset_key(dataset, made[-1][0].name): dg.AllPartitionMapping()}


def partition_set(dataset: Dataset) -> dg.DynamicPartitionsDefinition:
    """Return the partitions of a dataset: its raw files."""
    return dg.DynamicPartitionsDefinition(name=f"{dagster_name(dataset.name)}_files")


def scan_job_name(dataset: Dataset) -> str:
    """Return the name of the job that looks for new, changed and removed raw files."""
    return f"{dagster_name(dataset.name)}_scan"


def schedule_name(dataset: Dataset) -> str:
    """Return the name of the schedule that builds everything."""
    return f"{dagster_name(dataset.name)}_schedule"


def build_job_name(dataset: Dataset) -> str:
    """Return the name of the job that builds everything."""
    return f"{dagster_name(dataset.name)}_build"

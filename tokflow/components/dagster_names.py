"""Names that Dagster gives a dataset: keys of assets with their parents, partition set, jobs."""

import dagster as dg

from tokflow.pipeline.dagster_fields import dagster_name
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.output import FILE_STAGES
from tokflow.views.picture import has_report

PARTITIONED = ("raw", *FILE_STAGES)
"""The assets that have one partition for each raw file, parents first."""


def asset_key(dataset: Dataset, stage: str, name: str = "") -> dg.AssetKey:
    """Return the key of one asset: `[<dataset>, <stage>]`, `[<dataset>, "exports", <name>]` or
    `[<dataset>, "sequences", <name of a packing>]`, after the prefix that the dataset asks for."""
    own = ["exports" if stage == "export" else stage, *([name] if name else [])]
    return dg.AssetKey([*dataset.key_prefix, dataset.name, *own])


def packing_of_asset(stage: str, name: str) -> str:
    """Return the packing that an asset's outputs have: sequences are called by it."""
    return name if stage == "sequences" else ""


def asset_keys(dataset: Dataset) -> dict[tuple[str, str], dg.AssetKey]:
    """Return the keys of all assets by their stage and, of exports, their name, of sequences that
    of their packing."""
    of_raw = ("raw", "files", "tokenizer") if dataset.mixture is None else ()
    assets = [(stage, "") for stage in (*of_raw, *dataset.own_stages)]
    assets += [("sequences", packing) for packing in dataset.packings if packing]
    assets += [("export", of.name) for of in dataset.exports]
    assets += [("report", "")] if dataset.report and has_report() else []
    return {asset: asset_key(dataset, *asset) for asset in assets}


def parents(
    dataset: Dataset, stage: str, name: str = ""
) -> dict[dg.AssetKey, dg.PartitionMapping | None]:
    """Return what an asset is made from, and whether from all partitions or its own alone."""
    all_files, own = dg.AllPartitionMapping(), dg.IdentityPartitionMapping()
    of_stage: dict[str, dg.PartitionMapping | None] = {}
    packing = ""
    if stage == "files" or (stage == "tokenizer" and dataset.tokenizer.kind == "trained"):
        of_stage = {"raw": all_files}
    elif stage == "tokens":
        of_stage = {"raw": own, "tokenizer": None}
    elif stage == "split" and dataset.mixture is not None:
        return {asset_key(source, "split"): all_files for source in dataset.sources}
    elif stage == "split":
        of_stage = {"tokens": all_files if dataset.split.scope == "dataset" else own}
    elif stage == "sequences":
        of_stage = {"split": own}
    elif stage == "export":
        config = dataset.export_config(name)
        parent = dataset.stage_of_inputs(config)
        packing = dataset.packing_name(config) if parent == "sequences" else ""
        of_stage = {parent: all_files}
        of_stage |= {} if dataset.mixture is not None else {"files": None}
    elif stage == "report" and dataset.exports:
        return dict.fromkeys(asset_key(dataset, "export", of.name) for of in dataset.exports)
    elif stage == "report":
        of_stage = {dataset.own_stages[-1]: all_files}
    return {
        asset_key(dataset, parent, packing if parent == "sequences" else ""): mapping
        for parent, mapping in of_stage.items()
    }


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

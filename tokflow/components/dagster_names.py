"""Names of a dataset in Dagster: keys of assets with their parents, partition set, jobs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import dagster as dg

from tokflow.documents.user_function import find_function
from tokflow.errors import ConfigError
from tokflow.pipeline.dagster_fields import dagster_name
from tokflow.pipeline.dataset import Dataset
from tokflow.stage import RAW, Input, is_raw, stage_named
from tokflow.views.picture import has_report

FILES = "files"
"""The asset that lists the raw files."""

REPORT = "report"
"""The asset that is a page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnAsset:
    """An asset that no stage of the pipeline makes."""

    kind: str = "file"
    """Its tag in Dagster."""
    about: str
    """Its description, in Markdown."""
    is_of_file: bool = False
    """True if it has one partition for each raw file, or group of them."""
    inputs: Callable[[Dataset], Sequence[Input]] = lambda _: ()
    """Returns its parents."""


def _inputs_of_report(dataset: Dataset) -> list[Input]:
    """Return the exports of a dataset or, without any, the last stage before them."""
    made = [(of, variant) for of in dataset.stages for variant in of.variants(dataset)]
    exports = [Input(stage=of.name, variant=variant) for of, variant in made if of.has_latest]
    last, variant = made[-1]
    return exports or [Input(stage=last.name, reach="all", variant=variant)]


OWN_ASSETS: Mapping[str, OwnAsset] = {
    RAW: OwnAsset(
        is_of_file=True,
        about="The raw files as they are, one partition each. They are read where they stand, or "
        "fetched; none is ever changed.",
    ),
    FILES: OwnAsset(
        about="The list of the raw files with the status of each: failed, stale, new or built. "
        "Exports hold what is on this list, so a file that comes or goes makes them stale.",
        inputs=lambda _: [Input(stage=RAW, reach="all")],
    ),
    REPORT: OwnAsset(
        kind="html",
        about="Pictures and tables of the dataset on one page: lengths, bytes per token, shares, "
        "fill, rejects and samples. Builds in Dagster draw it last, whenever an export is another.",
        inputs=_inputs_of_report,
    ),
}


class Translator:
    """Keys, groups, tags and descriptions of the assets of a dataset, and by a subclass that its
    YAML names, `translator: package.module:Class`, other ones.

    `stage` is that of one asset: `raw`, `files`, `tokenizer`, `tokens`, `split`, `sequences`,
    `export` or `report`; `name` is that of an export or a packing. The same arguments must give the
    same: history, checks and lineage know an asset by its key.
    """

    def asset_key(self, dataset: Dataset, stage: str, name: str) -> dg.AssetKey:
        """Return the key: `[<dataset>, <stage>]`, `[<dataset>, "exports", <name>]` or
        `[<dataset>, "sequences", <name>]`, after the prefix that the dataset asks for."""
        step = stage_named(dataset.stages, stage)
        own = filter(None, [step.path if step else stage, name])
        return dg.AssetKey([*dataset.key_prefix, dataset.name, *own])

    def group(self, dataset: Dataset, stage: str, name: str) -> str:
        """Return the group: the dataset's name."""
        return dagster_name(dataset.name)

    def tags(self, dataset: Dataset, stage: str, name: str) -> Mapping[str, str]:
        """Return the tags: those of the YAML."""
        return dataset.tags

    def description(self, dataset: Dataset, stage: str, name: str) -> str:
        """Return the description, in Markdown."""
        step = stage_named(dataset.stages, stage)
        return step.about(dataset, name) if step else OWN_ASSETS[stage].about


def translator_of(dataset: Dataset) -> Translator:
    """Return the translator that the YAML of a dataset names. Raises: ConfigError."""
    named, where = dataset.translator, f"{dataset.name}: translator"
    return _translator(named, dataset.base, where) if named else Translator()


@cache
def _translator(named: str, base: Path, where: str) -> Translator:
    found = find_function(named, base, where=where).load()
    if not (isinstance(found, type) and issubclass(found, Translator)):
        raise ConfigError(
            where=where,
            expected="a subclass of tokflow.components.Translator",
            found=f"{found!r}",
            remedy="name one, as `package.module:Class`",
        )
    return found()


def is_partitioned(dataset: Dataset, stage: str) -> bool:
    """Return whether an asset has one partition for each raw file, or group of them."""
    return (stage_named(dataset.stages, stage) or OWN_ASSETS[stage]).is_of_file


def is_of_all_files(dataset: Dataset, stage: str) -> bool:
    """Return whether an asset is made of all partitions together, as an export is."""
    step = stage_named(dataset.stages, stage)
    is_before = is_raw(stage) if step is None else step.is_of_file or step.decides_all
    return not is_before


def asset_key(dataset: Dataset, stage: str, name: str = "") -> dg.AssetKey:
    """Return the key of one asset."""
    return translator_of(dataset).asset_key(dataset, stage, name)


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
    """Return what an asset is made from, and whether each partition from all partitions of it.

    Other mappings Dagster infers itself, which takes only one for each parent of a step.
    """
    step = stage_named(dataset.stages, stage)
    inputs = step.inputs(dataset, name) if step else OWN_ASSETS[stage].inputs(dataset)
    found: dict[dg.AssetKey, dg.PartitionMapping | None] = {}
    sources = {of.name: of for of in dataset.sources}
    for of in inputs:
        is_own = bool(stage_named(dataset.stages, of.stage) or OWN_ASSETS.get(of.stage))
        owners = (dataset,) if is_own and not of.dataset else dataset.sources
        for having in [sources[of.dataset]] if of.dataset else owners:
            is_split_up = is_partitioned(having, of.stage) and is_partitioned(dataset, stage)
            is_all = is_split_up and (of.reach == "all" or having is not dataset)
            mapping = dg.AllPartitionMapping() if is_all else None
            found[asset_key(having, of.stage, of.variant)] = mapping
    is_of_all = step and not step.is_of_file and any(of.is_of_all_here for of in inputs)
    if is_of_all and dataset.mixture is None:
        found[asset_key(dataset, FILES)] = None
    return found


def partition_set(dataset: Dataset) -> dg.DynamicPartitionsDefinition:
    """Return the partitions of a dataset: its raw files."""
    return dg.DynamicPartitionsDefinition(name=f"{dagster_name(dataset.name)}_files")


def scan_job_name(dataset: Dataset) -> str:
    """Return the name of the job that looks for new, changed and removed raw files."""
    return f"{dagster_name(dataset.name)}_scan"


def build_job_name(dataset: Dataset) -> str:
    """Return the name of the job that builds everything."""
    return f"{dagster_name(dataset.name)}_build"

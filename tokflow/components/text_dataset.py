"""TextDataset: everything that Dagster does for one dataset."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self

import dagster as dg
import pydantic

from tokflow.build.dataset import Dataset
from tokflow.components.assets import make_assets
from tokflow.components.automation import build_schedule, files_sensor, scan_job
from tokflow.components.build_job import build_job


@dataclass
class TextDataset(dg.Component):
    """Raw text in, LLM training data out: assets, checks, jobs, a sensor and a schedule.

    Its attributes are those of a dataset's YAML for `tokflow run`, and mean the same; so there
    are no templates in them. Relative paths start at the project's root.
    """

    dataset: Dataset

    @classmethod
    def get_model_cls(cls) -> type[Dataset]:
        """Return the schema of the attributes."""
        return Dataset

    @classmethod
    def load(cls, attributes: pydantic.BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Return the component that a defs.yaml of any Dagster project declares."""
        where = str(context.path / "defs.yaml")
        dataset = attributes if isinstance(attributes, Dataset) else Dataset.read({}, where=where)
        return cls(dataset.at(context.project_root, where=where))

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions; nothing is read or written for it.

        The first of all datasets brings the jobs of all: Dagster refuses two sensors of one name,
        and a sensor for jobs that come from elsewhere.
        """
        others = context.component_tree.get_all_components(TextDataset)
        datasets = {of.dataset.name: of.dataset for of in (*others, self)}
        own = asset_definitions(self.dataset)
        if self.dataset.name != min(datasets):
            return own
        return dg.Definitions.merge(own, job_definitions(list(datasets.values())))


def make_definitions(
    *datasets: Dataset, declared_in: Mapping[str, Path] = MappingProxyType({})
) -> dg.Definitions:
    """Return all definitions of the datasets; `declared_in`: the YAML files, by name, to which
    the assets lead."""
    assets = [asset_definitions(of, declared_in=declared_in.get(of.name)) for of in datasets]
    return dg.Definitions.merge(*assets, job_definitions(datasets))


def asset_definitions(dataset: Dataset, *, declared_in: Path | None = None) -> dg.Definitions:
    """Return the assets of a dataset; with `declared_in`, they lead to its YAML file."""
    with warnings.catch_warnings():
        # Backfill policies and a few more are called beta though they stay as they are in 1.13.
        warnings.simplefilter("ignore", category=dg.BetaWarning)
        warnings.simplefilter("ignore", category=dg.PreviewWarning)
        assets = make_assets(dataset)
        if declared_in is not None:
            assets = [_with_source(asset, declared_in) for asset in assets]
        return dg.Definitions(assets=assets)


def job_definitions(datasets: Sequence[Dataset]) -> dg.Definitions:
    """Return the jobs and schedules of datasets, and the sensor that they share."""
    builds = {dataset.name: build_job(dataset) for dataset in datasets}
    jobs = [*builds.values(), *map(scan_job, datasets)]
    return dg.Definitions(
        jobs=jobs,
        schedules=[build_schedule(of, builds[of.name]) for of in datasets if of.schedule],
        sensors=[files_sensor(datasets, jobs)] if datasets else [],
    )


def _with_source(asset: dg.AssetsDefinition, path: Path) -> dg.AssetsDefinition:
    reference = dg.LocalFileCodeReference(file_path=str(path), line_number=1, label=path.name)
    references = dg.CodeReferencesMetadataValue(code_references=[reference])
    return asset.map_asset_specs(
        lambda spec: spec.merge_attributes(metadata={"dagster/code_references": references})
    )

"""TextDataset: everything that Dagster does for one dataset."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import dagster as dg
import pydantic

from tokflow.build.dataset import Dataset
from tokflow.components.assets import make_assets
from tokflow.components.automation import (
    automation_sensor,
    files_sensor,
    scan_job,
    scan_schedule,
)
from tokflow.components.build_job import build_job
from tokflow.components.scaffolder import DatasetScaffolder


@dg.scaffold_with(DatasetScaffolder)
@dataclass
class TextDataset(dg.Component):
    """Raw text in, LLM training data out: assets, checks, jobs, sensors and a schedule.

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
        """Return the definitions; nothing is read or written for it."""
        return make_definitions(self.dataset)


def make_definitions(dataset: Dataset, *, declared_in: Path | None = None) -> dg.Definitions:
    """Return all definitions of a dataset; with `declared_in`, they lead to its YAML file."""
    with warnings.catch_warnings():
        # Backfill policies and a few more are called beta though they stay as they are in 1.13.
        warnings.simplefilter("ignore", category=dg.BetaWarning)
        warnings.simplefilter("ignore", category=dg.PreviewWarning)
        assets = make_assets(dataset)
        if declared_in is not None:
            assets = [_with_source(asset, declared_in) for asset in assets]
        scan = scan_job(dataset)
        return dg.Definitions(
            assets=assets,
            jobs=[build_job(dataset), scan],
            sensors=[files_sensor(dataset, scan), automation_sensor(dataset)],
            schedules=[scan_schedule(dataset, scan)],
        )


def _with_source(asset: dg.AssetsDefinition, path: Path) -> dg.AssetsDefinition:
    reference = dg.LocalFileCodeReference(file_path=str(path), line_number=1, label=path.name)
    references = dg.CodeReferencesMetadataValue(code_references=[reference])
    return asset.map_asset_specs(
        lambda spec: spec.merge_attributes(metadata={"dagster/code_references": references})
    )

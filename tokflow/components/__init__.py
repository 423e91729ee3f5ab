"""Definitions of a dataset for Dagster, and its build as a run in this process."""

from tokflow.components.alerts import failure_alerts
from tokflow.components.assets import Translator
from tokflow.components.build_job import run_build_job
from tokflow.components.export_io import ExportIOManager
from tokflow.components.instance import open_instance
from tokflow.components.recorded_build import BuildOptions, RecordedBuild
from tokflow.components.text_dataset import TextDataset, make_definitions

__all__ = [
    "BuildOptions",
    "ExportIOManager",
    "RecordedBuild",
    "TextDataset",
    "Translator",
    "failure_alerts",
    "make_definitions",
    "open_instance",
    "run_build_job",
]

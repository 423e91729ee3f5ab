"""Definitions of a dataset for Dagster, and its build as a run in this process."""

from tokflow.components.broken import broken_definitions
from tokflow.components.build_job import RecordedBuild, run_build_job
from tokflow.components.dataset_definitions import make_definitions
from tokflow.components.file_partitions import SyncedFiles, sync_files
from tokflow.components.instance import open_instance
from tokflow.components.text_dataset import TextDataset

__all__ = [
    "RecordedBuild",
    "SyncedFiles",
    "TextDataset",
    "broken_definitions",
    "make_definitions",
    "open_instance",
    "run_build_job",
    "sync_files",
]

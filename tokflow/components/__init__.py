"""Definitions of a dataset for Dagster, and the record of what is built without it."""

from tokflow.components.file_partitions import SyncedFiles, sync_files
from tokflow.components.instance import open_instance
from tokflow.components.records import RecordedBuild, record_build
from tokflow.components.text_dataset import TextDataset, make_definitions

__all__ = [
    "RecordedBuild",
    "SyncedFiles",
    "TextDataset",
    "make_definitions",
    "open_instance",
    "record_build",
    "sync_files",
]

"""What Dagster sees of a dataset, and what the command line tells Dagster."""

from tokflow.components.instance import open_instance
from tokflow.components.records import Recorded, record_build
from tokflow.components.sources import Synced, sync_files
from tokflow.components.text_dataset import TextDataset, make_definitions

__all__ = [
    "Recorded",
    "Synced",
    "TextDataset",
    "make_definitions",
    "open_instance",
    "record_build",
    "sync_files",
]

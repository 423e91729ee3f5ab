"""Report of a dataset as its last asset: the page in the store, and its pictures for Dagster."""

import hashlib
from typing import Any

import dagster as dg

from tokflow.build.dataset import Dataset
from tokflow.components.dagster_names import asset_keys
from tokflow.components.file_partitions import record_status
from tokflow.components.history import AssetHistory, Log
from tokflow.components.links import report_link
from tokflow.components.reports import Report
from tokflow.errors import size
from tokflow.store.remote.places import shown


def report_page(dataset: Dataset) -> Report:
    """Write the report of a dataset, and return what Dagster is told of it.

    Raises: as `make_report`.
    """
    from tokflow.report.page import make_report, write_report

    page = make_report(dataset)
    path = write_report(dataset, page)
    metadata: dict[str, Any] = {
        "report": report_link(dataset),
        **{of.name: dg.MetadataValue.md(of.markdown()) for of in page.pictures},
        "path": dg.MetadataValue.path(shown(path)),
    }
    version = hashlib.sha256(page.html).hexdigest()
    return Report(version, metadata, f"report: {size(len(page.html))}")


def record_pages(instance: dg.DagsterInstance, dataset: Dataset, log: Log) -> None:
    """Record what people look at after a build: the status of the files, and a new report."""
    record_status(instance, dataset, log)
    if ("report", "") in asset_keys(dataset):
        AssetHistory(instance, dataset, "report").record({"": report_page(dataset)}, log)

"""Addresses of the pages that `tokflow ui` serves beside Dagster's: reports and viewers."""

from collections.abc import Iterable
from urllib.parse import quote

import dagster as dg

from tokflow.components.markdown import MAX_CHARACTERS, escaped
from tokflow.pipeline.dataset import Dataset
from tokflow.report.picture import Picture

PREFIX = "/tokflow"
"""What the paths of these pages begin with; Dagster has none below it."""


def report_path(dataset: str) -> str:
    """Return the path of a dataset's report."""
    return f"{PREFIX}/{quote(dataset)}/report"


def viewer_path(dataset: str, export: str) -> str:
    """Return the path of the viewer of an export."""
    return f"{PREFIX}/{quote(dataset)}/exports/{quote(export)}"


def report_link(dataset: Dataset) -> dg.MarkdownMetadataValue:
    """Return the link to the report. Under `dagster dev` nobody serves it: its path stands beside
    it, for browsers open no file from a page of a server."""
    return dg.MetadataValue.md(f"[Open the report]({report_path(dataset.name)}) in `tokflow ui`")


def report_pictures(dataset: Dataset, pictures: Iterable[Picture]) -> dg.MarkdownMetadataValue:
    """Return the pictures of the report as `tokflow ui` serves them, as many as Dagster shows
    without a click."""
    said = "In `tokflow ui`:"
    for of in pictures:
        address = f"{report_path(dataset.name)}/{of.name}.svg"
        line = f"\n\n**{escaped(of.title)}**\n\n![]({address})"
        said += line if len(said) + len(line) <= MAX_CHARACTERS else ""
    return dg.MetadataValue.md(said)


def viewer_link(dataset: Dataset, export: str) -> dg.MarkdownMetadataValue:
    """Return the link to the viewer of an export, and the command that writes the same page."""
    link = f"[Page through the sequences]({viewer_path(dataset.name, export)}) in `tokflow ui`"
    return dg.MetadataValue.md(f"{link},\n\nor `tokflow inspect FOLDER --html FILE`")

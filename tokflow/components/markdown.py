"""Markdown for the web UI, which shows metadata in a column of some 440 px: short lines, tables,
and links to the pages that `tokflow ui` serves beside it.

Dagster shows a number without separators, cuts what is wide, and drops HTML.
"""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any
from urllib.parse import quote

import dagster as dg

from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.describe import formatted, formatted_rows, label
from tokflow.shown import clipped, printable
from tokflow.views.picture import Picture

WIDTH = 48
"""Characters of a line that is not cut where the window has 1,500 px."""

VALUE_WIDTH = 22
"""Characters of a value that stands beside its name."""

MAX_CHARACTERS = 999
"""Characters of markdown that Dagster 1.13 shows; it puts longer markdown behind a link."""

MAX_REASON = 400
"""Characters that are shown of why a file is not built."""

MAX_LINES = 16
"""Lines of a text that is shown."""

MAX_ROWS = 1_000
"""Rows of a table in metadata; the whole list is in the output's manifest."""

MAX_COLUMNS = 4
"""Rows of a table that may stand beside each other."""

PREFIX = "/tokflow"
"""Prefix of the paths of these pages; Dagster has none below it."""


def numbers_table(values: Mapping[str, Any]) -> dg.MarkdownMetadataValue:
    """Return values below each other, numbers with separators and by names in plain words."""
    lines = [
        f"| {_unbroken(label(of))} | {escaped(formatted(of, value))} |"
        for of, value in values.items()
    ]
    return dg.MetadataValue.md("\n".join(["| | |", "|:--|--:|", *lines]))


def details_table(values: Mapping[str, Any]) -> dg.MarkdownMetadataValue:
    """Return values that few people ask for as a table; a long value goes on in the next row."""
    lines = ["| | |", "|:--|:--|"]
    for name, value in values.items():
        first, *others = textwrap.wrap(formatted(name, value), VALUE_WIDTH) or [""]
        lines.append(f"| {_unbroken(label(name))} | {escaped(first)} |")
        lines += [f"| | {escaped(line)} |" for line in others]
    return dg.MetadataValue.md("\n".join(lines))


def rows_table(
    rows: Sequence[Mapping[str, Any]], max_rows: int = MAX_ROWS
) -> dg.TableMetadataValue:
    """Return a table with a line for each of the first rows, and one that counts the rest."""
    headings, lines = formatted_rows(rows[:max_rows])
    if len(rows) > max_rows:
        lines.append([f"and {len(rows) - max_rows:,} more", *[""] * (len(headings) - 1)])
    schema = dg.TableSchema([dg.TableColumn(of) for of in headings])
    records = [dg.TableRecord(dict(zip(headings, line, strict=True))) for line in lines]
    return dg.MetadataValue.table(records, schema=schema)


def columns_table(
    rows: Sequence[Mapping[str, Any]],
) -> dg.MarkdownMetadataValue | dg.TableMetadataValue:
    """Return a table with a column for each row, headed by its first value; of many rows the table
    with a line for each."""
    if not 0 < len(rows) <= MAX_COLUMNS:
        return rows_table(rows)
    headings, lines = formatted_rows(rows)
    first, *others = zip(headings, *lines, strict=True)
    rule = ("|:--", *["--:"] * len(rows))
    head = "| | " + " | ".join(map(escaped, first[1:])) + " |"
    cells = [[_unbroken(name), *map(escaped, values)] for name, *values in others]
    return dg.MetadataValue.md(
        "\n".join([head, "|".join(rule) + "|", *(f"| {' | '.join(of)} |" for of in cells)])
    )


def code_block(text: str) -> dg.MarkdownMetadataValue:
    """Return `text` as it is, letter by letter whatever is in it, in lines that are not cut, and as
    much of it as Dagster shows."""
    wrapper = textwrap.TextWrapper(
        WIDTH,
        expand_tabs=False,
        replace_whitespace=False,
        drop_whitespace=False,
        break_on_hyphens=False,
    )
    lines = [
        *chain.from_iterable(
            wrapper.wrap(of) or [""] for of in printable(text, keep="\n\t").split("\n")
        )
    ]
    few = lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], "…"]
    shown = clipped("\n".join(few), MAX_CHARACTERS - 40)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", shown)), default=0))
    return dg.MetadataValue.md(f"{fence}text\n{shown}\n{fence}")


def _unbroken(heading: str) -> str:
    return escaped(heading).replace(" ", "\N{NO-BREAK SPACE}")


def escaped(text: str) -> str:
    """Return `text` as markdown that shows just it on one line, wherever it comes from."""
    line = " ".join(printable(text, keep="\n\t").split())
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", line)


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

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

from tokflow.audit.inspection import visible
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.statistics import percent_full
from tokflow.views.picture import Picture

WIDTH = 48
"""Characters of a line that is not cut where the window has 1,500 px."""

VALUE_WIDTH = 22
"""Characters of a value that stands beside its name."""

MAX_CHARACTERS = 999
"""Of markdown: Dagster 1.13 shows a link in place of more, behind which it is."""

MAX_REASON = 400
"""Characters that are shown of why a file is not built."""

MAX_LINES = 16
"""Lines of a text that is shown."""

MAX_ROWS = 1_000
"""Rows of a table in metadata; the whole list is in the output's manifest."""

MAX_COLUMNS = 4
"""Rows of a table that may stand beside each other."""

PREFIX = "/tokflow"
"""What the paths of these pages begin with; Dagster has none below it."""

LABELS = {
    "chars_fraction": "share",
    "chars_per_token": "characters per token",
    "fill_fraction": "fill",
    "num_bytes": "bytes",
    "num_chars": "characters",
    "num_tokens_of_longest": "tokens of the longest",
    "is_new": "made by this run",
}


def numbers_table(values: Mapping[str, Any]) -> dg.MarkdownMetadataValue:
    """Return values below each other, numbers with separators and by names in plain words."""
    lines = [f"| {_label(of)} | {_cell(of, value)} |" for of, value in values.items()]
    return dg.MetadataValue.md("\n".join(["| | |", "|:--|--:|", *lines]))


def details_table(values: Mapping[str, Any]) -> dg.MarkdownMetadataValue:
    """Return what few ask for, in one table; a long value goes on in the next row."""
    lines = ["| | |", "|:--|:--|"]
    for name, value in values.items():
        first, *others = textwrap.wrap(shown_value(name, value), VALUE_WIDTH) or [""]
        lines.append(f"| {_label(name)} | {escaped(first)} |")
        lines += [f"| | {escaped(line)} |" for line in others]
    return dg.MetadataValue.md("\n".join(lines))


def rows_table(
    rows: Sequence[Mapping[str, Any]], max_rows: int = MAX_ROWS
) -> dg.TableMetadataValue:
    """Return a table with a line for each of the first rows, and one that counts the rest."""
    names = list(rows[0]) if rows else []
    records = [{label(of): shown_value(of, row[of]) for of in names} for row in rows[:max_rows]]
    if len(rows) > max_rows:
        more = f"and {len(rows) - max_rows:,} more"
        records.append({label(of): more if of == names[0] else "" for of in names})
    schema = dg.TableSchema([dg.TableColumn(label(of)) for of in names])
    return dg.MetadataValue.table([dg.TableRecord(of) for of in records], schema=schema)


def columns_table(
    rows: Sequence[Mapping[str, Any]],
) -> dg.MarkdownMetadataValue | dg.TableMetadataValue:
    """Return a table with a column for each row, headed by its first value; of many rows the table
    with a line for each."""
    if not 0 < len(rows) <= MAX_COLUMNS:
        return rows_table(rows)
    first, *names = rows[0]
    lines = [
        f"| | {' | '.join(_cell(first, row[first]) for row in rows)} |",
        f"|:--|{'--:|' * len(rows)}",
        *(
            f"| {_label(of)} | {' | '.join(_cell(of, row.get(of)) for row in rows)} |"
            for of in names
        ),
    ]
    return dg.MetadataValue.md("\n".join(lines))


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
    lines = [*chain.from_iterable(wrapper.wrap(of) or [""] for of in visible(text).split("\n"))]
    few = lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], "…"]
    shown = shortened_to("\n".join(few), MAX_CHARACTERS - 40)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", shown)), default=0))
    return dg.MetadataValue.md(f"{fence}text\n{shown}\n{fence}")


def label(name: str) -> str:
    """Return the name of a value in plain words: `num_cut_documents` is `cut documents`."""
    short = name.removeprefix("num_").removesuffix("_fraction").replace("_", " ")
    return LABELS.get(name, short)


def shown_value(name: str, value: Any) -> str:
    """Return a value as people read it: `595,409`, `3.75`, `98.2 %`."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float() if name == "fill_fraction":
            return f"{percent_full(value):.1f} %"
        case float():
            return f"{100 * value:.1f} %" if name.endswith("_fraction") else f"{value:,.2f}"
        case Mapping():
            return ", ".join(f"{of} {shown_value(of, each)}" for of, each in value.items())
    return str(value)


def shortened_to(text: str, num_chars: int) -> str:
    """Return the text or, where it is longer, its beginning and an ellipsis."""
    return text if len(text) <= num_chars else f"{text[: num_chars - 1]}…"


def _label(name: str) -> str:
    return escaped(label(name)).replace(" ", "\N{NO-BREAK SPACE}")


def _cell(name: str, value: Any) -> str:
    return escaped(shown_value(name, value))


def escaped(text: str) -> str:
    """Return `text` as markdown that shows just it on one line, wherever it comes from."""
    line = " ".join(visible(text).split())
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

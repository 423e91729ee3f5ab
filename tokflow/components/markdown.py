"""Markdown for the web UI, which shows metadata in a column of 267 px where the window has 1,280:
short lines, narrow tables and small pictures.

Dagster shows a number without separators, cuts what is wide, and drops HTML.
"""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import ceil
from typing import Any
from urllib.parse import quote

import dagster as dg

from tokflow.pipeline.describe import formatted, label, shown_columns
from tokflow.shown import clipped, printable
from tokflow.views.picture import Picture, shortened_name

WIDTH = 30
"""Characters of a line that is not cut where the window has 1,280 px."""

WORD_WIDTH = 8
"""Characters of a word that stand on one line of a narrow table; a longer one may go on below."""

BAR_WIDTH = 6
"""Characters of the longest bar of a picture."""

MAX_CHARACTERS = 999
"""Characters of markdown that Dagster 1.13 shows; it puts longer markdown behind a link."""

MAX_REASON = 400
"""Characters that are shown of why a file is not built."""

MAX_LINES = 16
"""Lines of a text that is shown."""

MAX_ROWS = 1_000
"""Rows of a table in metadata; the whole list is in the output's manifest."""

SAFE = "/:=,;'"
"""Characters that stand in a data URL as they are."""


def numbers_table(*rows: Mapping[str, Any], rule: str = "--:") -> dg.MarkdownMetadataValue:
    """Return values below each other, numbers with separators and by names in plain words, without
    optional ones that are 0; several rows below each other, too, for beside each other they would
    be cut."""
    below = ("\n".join(_lines(row)) for row in rows)
    return dg.MetadataValue.md(f"| | |\n|:--|{rule}|\n" + "\n| | |\n".join(below))


def _lines(row: Mapping[str, Any]) -> Iterator[str]:
    for name in shown_columns([row]):
        if shown := escaped(_shown(name, row[name])):
            is_number = isinstance(row[name], int | float)
            yield f"| {escaped(label(name))} | {shown if is_number else _breakable(shown)} |"


def _shown(name: str, value: Any) -> str:
    """Return a value as people read it: nothing of a rate that is not known, for no tokens."""
    is_unknown = value == 0 and name.endswith("_per_token")
    return "" if is_unknown else formatted(name, value)


def rows_table(
    rows: Sequence[Mapping[str, Any]], max_rows: int = MAX_ROWS
) -> dg.TableMetadataValue:
    """Return a table with a line for each of the first rows, and one that counts the rest."""
    names = shown_columns(rows[:max_rows])
    headings = [*map(label, names)]
    lines = [
        [_breakable(_shown(of, row.get(of)), 14 if of == "text" else WORD_WIDTH) for of in names]
        for row in rows[:max_rows]
    ]
    if len(rows) > max_rows:
        lines.append([f"and {len(rows) - max_rows:,} more", *[""] * (len(headings) - 1)])
    schema = dg.TableSchema([dg.TableColumn(of) for of in headings])
    records = [dg.TableRecord(dict(zip(headings, line, strict=True))) for line in lines]
    return dg.MetadataValue.table(records, schema=schema)


def _breakable(text: str, width: int = WORD_WIDTH) -> str:
    """Return a text, or markdown, whose long words may go on in the next line, at best after a
    sign."""

    def broken(word: re.Match[str]) -> str:
        return re.sub(rf"(\\?[^\w\s\\]|_|\w{{{width}}})(?=.)", "\\1\u200b", word[0])

    return re.sub(rf"\S{{{width + 2},}}", broken, text)


def code_block(text: str) -> dg.MarkdownMetadataValue:
    """Return `text` as it is, letter by letter whatever is in it, in lines that are not cut, and as
    much of it as Dagster shows."""
    lines = [*chain.from_iterable(map(_wrapped, printable(text, keep="\n\t").split("\n")))]
    few = lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], "…"]
    return _fenced(clipped("\n".join(few), MAX_CHARACTERS - 40), "text")


def _wrapped(line: str, width: int = WIDTH) -> list[str]:
    wrapper = textwrap.TextWrapper(width, break_on_hyphens=False, drop_whitespace=False)
    wrapper.expand_tabs = wrapper.replace_whitespace = False
    return wrapper.wrap(line) or [""]


def _fenced(text: str, language: str) -> dg.MarkdownMetadataValue:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return dg.MetadataValue.md(f"{fence}{language}\n{text}\n{fence}")


def for_shell(*commands: str) -> dg.MarkdownMetadataValue:
    """Return commands or paths to copy into a shell, in lines that are not cut unless they have
    quotes: a backslash at the end of a line is no part of them."""
    lines = ([of] if "'" in of else _wrapped(of, WIDTH - 1) for of in commands)
    return _fenced("\n".join("\\\n".join(of) for of in lines), "sh")


def escaped(text: str) -> str:
    """Return `text` as markdown that shows just it on one line, wherever it comes from."""
    line = " ".join(printable(text, keep="\n\t").split())
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", line)


def small_picture(picture: Picture) -> dg.MarkdownMetadataValue:
    """Return a picture of the report, with its note, as small as Dagster shows it without a click:
    bars as a table, an outline as SVG."""
    lines = [
        f"| {_breakable(escaped(shortened_name(name)))} "
        f"| {'▇' * ceil(BAR_WIDTH * length / picture.full)} | {escaped(words)} |"
        for name, length, words in picture.bars
    ]
    image = f"![{escaped(picture.title)}](data:image/svg+xml,{quote(picture.outline, safe=SAFE)})"
    shown = "\n".join(["| | | |", "|:--|:--|:--|", *lines]) if lines else image
    note = escaped(picture.note)
    return dg.MetadataValue.md(clipped(f"{shown}\n\n{note}", MAX_CHARACTERS))


def whole_pictures(pictures: Sequence[Picture]) -> dg.MarkdownMetadataValue:
    """Return the pictures of the report in full, which Dagster shows behind a link."""
    said = (f"**{escaped(of.title)}**\n\n{of.markdown()}\n\n{escaped(of.note)}" for of in pictures)
    return dg.MetadataValue.md("\n\n".join(said))

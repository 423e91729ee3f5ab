"""The template of a page, filled by jinja2, which escapes all that it is given."""

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from tokflow.pipeline.statistics import percent_full
from tokflow.report.picture import INK, MUTED, SERIES, Picture, shortened_name

COLORS = {
    INK: "var(--ink-2)",
    MUTED: "var(--ink-3)",
    **{color: f"var(--c{number})" for number, color in enumerate(SERIES)},
}
"""Colours of pictures, and those of the page in their places: one for light, one for dark."""

MAX_CHARS = 160
"""Characters of a name or a message that are shown."""


def rendered(values: Mapping[str, Any]) -> bytes:
    """Return the page of these values. Everything but pictures is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"inline": inline, "number": _number, "short": _short, "percent_full": percent_full}
    environment.filters |= filters
    page = environment.get_template("page.html").render(values)
    return page.encode(errors="replace")


def inline(picture: Picture) -> str:
    """Return a picture as part of the page, in its colours."""
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", picture.svg.decode(), flags=re.DOTALL)
    svg = re.sub("<[^<>]*>", _in_own_colors, svg)  # not the text between them
    label = escape(f"{picture.title}: {picture.note}")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _in_own_colors(tag: re.Match[str]) -> str:
    text = tag[0]
    for color, name in COLORS.items():
        text = text.replace(color, name)
    return text


def _number(value: float | None, digits: int = 0) -> str:
    return "\N{EN DASH}" if value is None else f"{value:,.{digits}f}"


def _short(text: str, most: int = MAX_CHARS) -> str:
    return shortened_name(text, most)

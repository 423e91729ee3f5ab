"""Pictures of a report: matplotlib's drawings as SVG. It is the extra `[report]`, which nothing
else in tokflow needs."""

import base64
import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tokflow.errors import ConfigError
from tokflow.formatting import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INSTALL = "pip install 'dagster-tokflow[report]'"

WIDTH = 4.6
"""Inches of 72 points, of every picture: two stand side by side on a wide page."""

MAX_BARS = 12
"""Bars of a picture; how many more there are its note says."""

ROW_HEIGHT = 0.27
"""Inches of each bar of a picture of bars."""

INK, MUTED = "#757b86", "#80868f"
"""Colours of numbers, and of words and lines around them, that suit white and black; a page
replaces them by its own."""

STYLE = Path(__file__).with_suffix(".mplstyle")

SERIES = ("#4f7cff", "#e0862f", "#1fa58c", "#b566d9", "#d9596a", "#8f9440")
"""Colours of what is shown, likewise."""

_PROLOG = re.compile(r"\A.*?(?=<svg )|<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)
_NUMBERED = re.compile(r'(<\w[^<>]*) id="[\w.]+_\d+"')
"""Names of parts of a drawing, which several pictures on a page would have alike."""


def has_report() -> bool:
    """Return whether matplotlib is installed; nothing is imported."""
    return find_spec("matplotlib") is not None


def check_report(where: str) -> None:
    """Raise ConfigError where matplotlib is not installed."""
    if not has_report():
        raise ConfigError(
            where=where,
            expected="matplotlib, which draws the pictures of a report",
            found="none installed",
            remedy=INSTALL,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """One drawing, transparent, in colours that can be read on white and on black."""

    name: str
    """Its name in metadata: letters and underscores."""
    title: str
    svg: bytes = field(repr=False)
    """The same bytes for the same numbers."""
    note: str = ""
    """The data that it shows, and how much of it."""
    bars: Sequence[tuple[str, float, str]] = ()
    """Name, length and words of each of its bars."""
    full: float = 1.0
    """Length of a full bar."""

    def markdown(self) -> str:
        """Return the picture as markdown that needs no other file."""
        data = base64.b64encode(self.svg).decode()
        return f"![{self.title}](data:image/svg+xml;base64,{data})"


def make_picture(
    name: str,
    title: str,
    draw: Callable[["Axes"], None],
    *,
    note: str = "",
    height: float = 2.3,
    bars: Sequence[tuple[str, float, str]] = (),
    full: float = 1.0,
) -> Picture:
    """Return the picture that a function draws into axes; `bars`: those that it draws, if any."""
    import matplotlib as mpl
    from matplotlib.figure import Figure  # not pyplot, which keeps every figure

    file = io.BytesIO()
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()  # what a user's matplotlibrc says is for their own pictures
        mpl.rcParams.update(mpl.rc_params_from_file(STYLE, use_default_template=False))
        # Its own font has few scripts; the text of an SVG is drawn in those of who shows it.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        warnings.filterwarnings("ignore", "Matplotlib currently does not support", UserWarning)
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        plain = {"Date": None, "Creator": None}
        figure.savefig(file, transparent=True, format="svg", metadata=plain)
    svg = _NUMBERED.sub(r"\1", _PROLOG.sub("", file.getvalue().decode()))
    svg = re.sub(r"\s*\n\s*", "\n", svg).strip()
    return Picture(name=name, title=title, svg=svg.encode(), note=note, bars=bars, full=full)


def bars_picture(
    name: str,
    title: str,
    bars: Sequence[tuple[str, float, str]],
    *,
    note: str = "",
    limit: float | None = None,
    color: str = SERIES[0],
    is_named_above: bool = False,
) -> Picture:
    """Return horizontal bars, the first on top, each with a name, a length and the words behind it.

    `limit`: the length of a full bar, which stands in the background of each; by default the
    longest, and no background. `is_named_above`: names are long and stand above their bars.
    """
    if len(bars) > MAX_BARS:
        note += f"; {len(bars) - MAX_BARS:,} more left out"
        bars = bars[:MAX_BARS]
    most = limit or max((length for _, length, _ in bars), default=1) or 1

    def draw(axes: "Axes") -> None:
        places = range(len(bars))
        if limit is not None:
            axes.barh(places, [most] * len(bars), height=0.62, color=MUTED, alpha=0.14)
        thick = 0.3 if is_named_above else 0.62
        axes.barh(places, [length for _, length, _ in bars], height=thick, color=color)
        for place, (name, length, words) in zip(places, bars, strict=True):
            if is_named_above:
                axes.annotate(shortened_name(name, 58), (0, place - 0.24), fontsize=8.5)
            at = most if limit is not None else length
            axes.annotate(
                words, (at, place), (4, 0), textcoords="offset points", va="center", fontsize=8.5
            )
        names = [] if is_named_above else [shortened_name(of) for of, _, _ in bars]
        axes.set_yticks([] if is_named_above else places, names)
        axes.set_ylim(len(bars) - 0.5, -0.75 if is_named_above else -0.5)
        axes.set_xlim(0, most)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)

    height = 0.12 + ROW_HEIGHT * max(len(bars), 2) * (1.6 if is_named_above else 1)
    return make_picture(name, title, draw, note=note, height=height, bars=bars, full=most)


def shortened_name(name: str, most: int = 24) -> str:
    """Return a name without its middle where it is longer, on one line."""
    name = printable(name)
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-(most // 2) :]}"


def short_number(value: float) -> str:
    """Return a number in few characters: 950, 1.2k, 34M, 5.6B."""
    for unit, factor in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * factor:  # in three digits 999,950 is 1M
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"

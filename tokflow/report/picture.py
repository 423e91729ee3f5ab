"""Pictures of a report: matplotlib's drawings as SVG, and as PNG from the same drawing."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 4.6
"""Inches of 72 points, of every picture: two stand side by side on a wide page."""

INK, MUTED, GRID = "#7d8590", "#8b929c", "#8b929c"
"""Colours of numbers, words and lines that can be read on white and on black."""

SERIES = ("#4a7dff", "#e2842f", "#1fa38a", "#c05bd6", "#d9534f", "#8a8f3c")
"""Colours of what is shown, likewise."""

STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "tokflow",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """One drawing, transparent, in colours that can be read on white and on black."""

    name: str
    """Its name in metadata: letters and underscores."""
    title: str
    svg: bytes = field(repr=False)
    """The same bytes for the same numbers."""
    note: str = ""
    """A sentence below it: what was counted, and of how much."""
    draw: Callable[["Axes"], None] = field(repr=False, compare=False)
    height: float = field(default=2.4, repr=False)
    """In inches."""

    def png(self) -> bytes:
        """Return the same drawing as PNG, with two pixels for each point."""
        return _rendered(self.draw, self.height, format="png", dpi=144)

    def markdown(self) -> str:
        """Return the picture as markdown that needs no other file."""
        data = base64.b64encode(self.svg).decode()
        return f"![{self.title}](data:image/svg+xml;base64,{data})"


def make_picture(
    name: str, title: str, draw: Callable[["Axes"], None], *, note: str = "", height: float = 2.4
) -> Picture:
    """Return the picture that a function draws into axes."""
    svg = _rendered(draw, height, format="svg", metadata={"Date": None, "Creator": None})
    return Picture(name=name, title=title, svg=svg, note=note, draw=draw, height=height)


def _rendered(draw: Callable[["Axes"], None], height: float, **options: Any) -> bytes:
    import matplotlib as mpl
    from matplotlib.figure import Figure  # not pyplot, which keeps every figure

    file = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure.subplots())
        figure.savefig(file, transparent=True, **options)
    return file.getvalue()

"""Things that match a pattern of the raw files and are not read, as the command line says it."""

from collections.abc import Sequence
from pathlib import Path

from tokflow.cli.output import shown_path
from tokflow.raw import LeftOut


def line_of_left_out(left_out: Sequence[LeftOut]) -> str:
    """Return the line that names it, the first five things by path."""
    named = [f"{_shown(left.path)} ({left.found})" for left in left_out[:5]]
    more = [f"and {len(left_out) - 5:,} more"] if len(left_out) > 5 else []
    return f"matched, but not read: {', '.join(named + more)}"


def document_of_left_out(left_out: Sequence[LeftOut]) -> list[dict[str, str]]:
    """Return all of it as plain JSON."""
    return [{"path": left.path, "found": left.found} for left in left_out]


def _shown(path: str) -> str:
    return shown_path(Path(path)) if path.startswith("/") else path

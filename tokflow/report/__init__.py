"""Report of a dataset: one page of pictures and tables, for people.

Its pictures are drawn by matplotlib, the extra `[report]`; nothing else in tokflow needs it.
"""

from importlib.util import find_spec

from tokflow.errors import ConfigError

INSTALL = "pip install 'dagster-tokflow[report]'"


def has_report() -> bool:
    """Return whether what draws the pictures is installed; nothing is imported."""
    return find_spec("matplotlib") is not None


def check_report(where: str) -> None:
    """Raise ConfigError where what draws the pictures is not installed."""
    if not has_report():
        raise ConfigError(
            where=where,
            expected="matplotlib, which draws the pictures of a report",
            found="none installed",
            remedy=INSTALL,
        )

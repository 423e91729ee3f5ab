"""The command `tokflow`: parses arguments, calls the core and prints the results."""

import atexit
import gc
import logging
import os
import sys
import time
from io import TextIOWrapper
from pathlib import Path

STARTED = time.perf_counter()
"""Start of the command, in seconds, so that the time it reports includes its imports."""

SPARING = {
    # Not a thread for each other core that waits, busy, for matrices to multiply.
    "OPENBLAS_NUM_THREADS": "1",
    # Not a look into each installed package for plugins of pydantic.
    "PYDANTIC_DISABLE_PLUGINS": "__all__",
}
"""Environment variables that save a command start-up work."""

set_by_default: set[str] = set()
"""Names in SPARING that the user did not set; processes that are not part of the command get
none."""


def main() -> None:
    """Run the command line, without work that no command needs. Worker processes inherit the
    environment."""
    set_by_default.update(SPARING.keys() - os.environ.keys())
    os.environ.update({name: SPARING[name] for name in set_by_default})
    # With Python's threshold cycles are looked for a hundred times while modules are imported, and
    # by an interpreter that ends several times over among all that was: 0.2 s after a build.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    from tokflow.cli.app import app

    # Where the shell closed them, as by `>&-`, there are none.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    warnings = logging.StreamHandler()
    warnings.setFormatter(_Warning("warning: %(message)s"))
    logging.getLogger("tokflow").addHandler(warnings)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name may be no UTF-8
    app(prog_name="tokflow")


class _Warning(logging.Formatter):
    """Formats warnings without secrets or terminal control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        from tokflow.formatting import printable, redacted

        return printable(redacted(super().format(record)))

"""The command `tokflow`: parses what the user typed, calls the core, prints what came of it."""

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


def main() -> None:
    """Run the command line."""
    # An interpreter that ends looks for cycles among all that was imported, several times over:
    # 0.2 s after a build, 0.1 s of the 0.5 s that a run with nothing to do takes.
    atexit.register(gc.freeze)
    from tokflow.cli.app import app

    # Where the shell closed them, as by `>&-`, there are none.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    warnings = logging.StreamHandler()
    warnings.setFormatter(logging.Formatter("warning: %(message)s"))
    logging.getLogger("tokflow").addHandler(warnings)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name may be no UTF-8
    app(prog_name="tokflow")

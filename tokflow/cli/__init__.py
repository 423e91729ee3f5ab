"""The command `tokflow`: parses what the user typed, calls the core, prints what came of it."""

import logging
import sys
import time
from io import TextIOWrapper

STARTED = time.perf_counter()
"""Start of the command, in seconds, so that the time it reports includes its imports."""


def main() -> None:
    """Run the command line."""
    from tokflow.cli.app import app

    warnings = logging.StreamHandler()
    warnings.setFormatter(logging.Formatter("warning: %(message)s"))
    logging.getLogger("tokflow").addHandler(warnings)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name may be no UTF-8
    app(prog_name="tokflow")

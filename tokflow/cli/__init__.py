"""The command `tokflow`: parses what the user typed, calls the core, prints what came of it."""

import time

STARTED = time.perf_counter()
"""When the command began, so that what it says of its own time includes its imports."""


def main() -> None:
    """Run the command line."""
    from tokflow.cli.app import app

    app(prog_name="tokflow")

"""Try a store at a URL with each kind of fault, and print how many of them it held:
`make test-faults`. `ARGS="--table kills --seed 3 -v"` picks a table and other
requests, and shows each trial.

Held: what was published has the right bytes, an error was in words and only where there may be one,
and another machine then completed the build. Exit status 1 if a trial did not hold.
"""

import argparse
import logging
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tokflow_tests.faults.tables import TABLES
from tokflow_tests.faults.trial import Given, Trial, givens, short, undisturbed
from tokflow_tests.object_store import ObjectStore, another_machine, serve_objects

LARGE = ("requests that fail", "writers killed")
"""Tables for files that go in several parts, too; the others are the same for all files."""


def main() -> int:
    """Run the tables that are asked for; return the exit status."""
    parser = argparse.ArgumentParser(prog="make test-faults", description=__doc__)
    parser.add_argument("--table", default="", help="only tables whose name has this")
    parser.add_argument("--seed", type=int, default=1, help="which of the requests fail")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each trial")
    arguments = parser.parse_args()
    logging.getLogger("tokflow").setLevel(logging.ERROR)  # it says that it tries again
    held = tried = 0
    with tempfile.TemporaryDirectory() as name, serve_objects() as server, short():
        folder = Path(name)
        with another_machine(server, folder):
            for given in [undisturbed(given, server) for given in givens(folder)]:
                for table in TABLES:
                    if arguments.table in table and (given.name == "small" or table in LARGE):
                        of_table = _run(table, given, server, arguments)
                        held, tried = held + of_table[0], tried + of_table[1]
    print(f"faults: {held} of {tried} held")
    return 0 if held == tried else 1


def _run(
    table: str, given: Given, server: ObjectStore, arguments: argparse.Namespace
) -> tuple[int, int]:
    held = tried = 0
    started = time.monotonic()
    choose = random.Random(arguments.seed)
    for name, trial in TABLES[table](given, server, choose):
        problem = _problem(trial)
        tried += 1
        held += problem is None
        if problem or arguments.verbose:
            print(f"    {name}: {problem or 'held'}", flush=True)
        server.forget()
    seconds = time.monotonic() - started
    print(f"{table}, {given.name} files: {held} of {tried} held, {seconds:.0f} s", flush=True)
    return held, tried


def _problem(trial: Trial) -> str | None:
    try:
        return trial()
    except Exception:
        return traceback.format_exc()


if __name__ == "__main__":
    sys.exit(main())

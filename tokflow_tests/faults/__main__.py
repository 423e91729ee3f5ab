"""Try a store at a URL, and pushes to the hub, with each kind of fault, and print how many of them
they held: `make test-faults`. `ARGS="--table kill --seed 3 -v"` picks tables and other requests,
and shows each trial.

Held: what was published has the right bytes, an error was in words and only where there may be one,
and another machine, or push, then completed it. Exit status 1 if a trial did not hold.
"""

import argparse
import logging
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokflow_tests.faults import pushes, trial
from tokflow_tests.faults.tables import TABLES
from tokflow_tests.faults.trial import Trial, short, undisturbed
from tokflow_tests.hub import serve_hub
from tokflow_tests.object_store import another_machine, serve_objects

LARGE = ("requests that fail", "writers killed")
"""Tables for files that go in several parts, too; the others are the same for all files."""

Trials = Iterator[tuple[str, Trial]]


def main() -> int:
    """Run the tables that are asked for; return the exit status."""
    parser = argparse.ArgumentParser(prog="make test-faults", description=__doc__)
    parser.add_argument("--table", default="", help="only tables whose name has this")
    parser.add_argument("--seed", type=int, default=1, help="which of the requests fail")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each trial")
    arguments = parser.parse_args()
    logging.getLogger("tokflow").setLevel(logging.ERROR)  # it says that it tries again
    held = tried = 0
    with tempfile.TemporaryDirectory() as name:
        for of_tables in (_of_store, _of_pushes):
            for table, trials in of_tables(Path(name), arguments):
                of_table = _run(table, trials, is_verbose=arguments.verbose)
                held, tried = held + of_table[0], tried + of_table[1]
    print(f"faults: {held} of {tried} held")
    return 0 if held == tried else 1


def _of_store(folder: Path, arguments: argparse.Namespace) -> Iterator[tuple[str, Trials]]:
    if not (tables := _asked(TABLES, arguments)):
        return
    with serve_objects() as server, short(), another_machine(server, folder):
        for given in [undisturbed(given, server) for given in trial.givens(folder)]:
            for table, trials in tables.items():
                if given.name == "small" or table in LARGE:
                    found = trials(given, server, random.Random(arguments.seed))
                    yield f"{table}, {given.name} files", _forgotten(found, server.forget)


def _of_pushes(folder: Path, arguments: argparse.Namespace) -> Iterator[tuple[str, Trials]]:
    if not (tables := _asked(pushes.TABLES, arguments)):
        return
    logging.disable()  # modules of huggingface_hub, which are imported later, say so, too
    with serve_hub() as hub:
        for given in pushes.givens(folder / "pushed", hub):
            for table, trials in tables.items():
                found = trials(given, hub, random.Random(arguments.seed))
                yield f"{table}, {given.name}", _forgotten(found, hub.faults.clear)


def _asked(tables: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    return {table: trials for table, trials in tables.items() if arguments.table in table}


def _forgotten(trials: Trials, forget: Callable[[], object]) -> Trials:
    """Yield trials; what a server has of one is forgotten before the next."""
    for each in trials:
        yield each
        forget()


def _run(table: str, trials: Trials, *, is_verbose: bool) -> tuple[int, int]:
    held = tried = 0
    started = time.monotonic()
    for name, trial_ in trials:
        problem = _problem(trial_)
        tried += 1
        held += problem is None
        if problem or is_verbose:
            print(f"    {name}: {problem or 'held'}", flush=True)
    print(f"{table}: {held} of {tried} held, {time.monotonic() - started:.0f} s", flush=True)
    return held, tried


def _problem(trial_: Trial) -> str | None:
    try:
        return trial_()
    except Exception:
        return traceback.format_exc()


if __name__ == "__main__":
    sys.exit(main())

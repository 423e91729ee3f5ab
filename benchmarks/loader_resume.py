"""The rows that each loader loses, repeats or gives in another order when a run goes on elsewhere.

Every loader reads the same 9,600 numbered rows. Its ranks, each a process, read a third of an
epoch; their states are saved, and the ranks of another run go on from them to the epoch's end. The
rows of both runs together are compared with those of an epoch that nobody interrupted.
"""

import collections
import contextlib
import itertools
import json
import os
import socket
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.programs import ROOT

NUM_ROWS, ROW_TOKENS = 9_600, 8
NUM_BATCHES = 102  # a third of an epoch, and whole batches of 48
TIMEOUT = 240


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Ranks, rows of a batch of all ranks together, and worker processes of each rank."""

    world_size: int = 2
    batch_size: int = 32
    workers: int = 2


BEFORE = Run()
AFTER = {
    "nothing": BEFORE,
    "4 ranks": Run(world_size=4),
    "batches of 48": Run(batch_size=48),
    "3 ranks, 48": Run(world_size=3, batch_size=48),
    "1 worker": Run(workers=1),
}
"""What changes: the run that goes on, by its name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What the rows of both runs are, against an epoch that nobody interrupted."""

    num_lost: int = 0
    """Rows that neither run gave."""
    num_repeated: int = 0
    """Times that a row was given again."""
    order: str = ""
    """same: row for row; batches: each has the rows that it has in a run that was so from its
    beginning; other."""
    refused: str | None = None
    """The message."""


def measure_resume(program, folder, *, after=AFTER):
    """Return the outcome by the name of each change; "epoch": of one that nobody interrupts."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        whole = read(program, folder, place / "whole", BEFORE)
        if whole.refused:
            return {"epoch": Outcome(refused=whole.refused)}
        found = {"epoch": judge(rows_of(whole.batches), range(NUM_ROWS))}
        first = read(program, folder, place / "first", BEFORE, num_batches=NUM_BATCHES)
        if first.refused:
            return found | dict.fromkeys(after, Outcome(refused=first.refused))
        for number, (name, run) in enumerate(after.items()):
            rest = read(program, folder, place / str(number), run, states=place / "first")
            if rest.refused:
                found[name] = Outcome(refused=rest.refused)
                continue
            given = rows_of([*first.batches, *rest.batches])
            found[name] = judge(given, rows_of(whole.batches))
            if found[name].order != "same":
                so = read(program, folder, place / f"{number}-so", run).batches
                if same_batches(rest.batches, so[-len(rest.batches) :]):
                    found[name] = replace(found[name], order="batches")
        return found


def rows_of(batches):
    return list(itertools.chain.from_iterable(batches))


def same_batches(found, expected):
    return [*map(sorted, found)] == [*map(sorted, expected)]


def judge(given, expected):
    """Return the outcome of rows that were given against those of an epoch in their order."""
    times = collections.Counter(given)
    return Outcome(
        num_lost=len(set(expected) - set(times)),
        num_repeated=sum(number - 1 for number in times.values()),
        order="same" if given == list(expected) else "other",
    )


@dataclass(frozen=True, slots=True)
class Read:
    """The rows of each batch, those of the first rank first."""

    batches: list[list[int]]
    refused: str | None


def read(program, folder, place, run, *, num_batches=None, states=None):
    """Let all ranks read at once."""
    place.mkdir()
    with free_port() as port:
        ranks = [
            start(program, folder, place, run, rank, port, num_batches, states)
            for rank in range(run.world_size)
        ]
    try:
        for process in ranks:
            process.wait(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return Read([], f"hangs: no end after {TIMEOUT} s")
    finally:
        for process in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
    return together(place, run)


def start(program, folder, place, run, rank, port, num_batches, states):
    request = {
        "folder": str(folder),
        "variant": program.variant,
        "sequence_length": ROW_TOKENS,
        "batch_size": run.batch_size,
        "workers": run.workers if program.has_workers else 0,
        "rank": rank,
        "world_size": run.world_size,
        "num_batches": num_batches,
        # Of a rank that was not there before, that of another.
        "state": str(states / f"{rank % BEFORE.world_size}.state") if states else None,
    }
    world = str(run.world_size)
    of_torchrun = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world}
    of_torchrun |= {"LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [*program.command, "resume", json.dumps(request), place / f"{rank}.json"]
    with (place / f"{rank}.log").open("w") as log:
        return subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            env={**os.environ, **program.environment(place), **of_torchrun},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def together(place, run):
    """Return the batches of all ranks, joined."""
    found = []
    for rank in range(run.world_size):
        answer = place / f"{rank}.json"
        if not answer.exists():
            log = (place / f"{rank}.log").read_text().strip().splitlines()
            return Read([], f"fails: {log[-1] if log else 'without a word'}")
        found.append(json.loads(answer.read_text()))
        if found[-1]["refused"]:
            return Read([], found[-1]["refused"])
    of_ranks = itertools.zip_longest(*(one["batches"] for one in found), fillvalue=[])
    return Read([rows_of(batch) for batch in of_ranks], None)


@contextlib.contextmanager
def free_port():
    """Give a port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield one.getsockname()[1]

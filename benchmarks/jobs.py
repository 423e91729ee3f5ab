"""How time and memory scale with `--jobs`: whole builds on 1, 2, 4, ... cores.

    python -m benchmarks jobs

`tokflow run --config` into an empty store, and peers, each with so many processes and pinned to as
many cores, in turn within each repeat. The tokens of all are compared, and of our own builds every
file, before a time is printed.
"""

import hashlib
import os
import shutil
import statistics
import tempfile
from pathlib import Path

from benchmarks.peer_programs import PEERS
from benchmarks.programs import RUN_CONFIG, Place
from benchmarks.speed import Result, failed, line, row, run_once

SCALING_PEERS = ("datatrove", "dolma", "litdata")
PROGRAMS = (RUN_CONFIG, *(peer for peer in PEERS if peer.name in SCALING_PEERS))
MANY_CORES = 64
"""Of the machine that is predicted."""
NOT_COMPARED = ("run.json", "hashes.jsonl")
"""Files that say when something was made, or changed: they are no output."""
TWICE_RATIO = 1.8
"""Aim for two jobs against one."""
LARGEST_BYTES = 600_000_000
"""Aim for the memory of a worker."""


def numbers_of_jobs():
    """Return 1, 2, 4, ... and how many cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [*(2**power for power in range(cores.bit_length()) if 2**power < cores), cores]


def measure_jobs(file, programs, *, numbers, folder, repeats, peer_repeats, timeout, tell=print):
    """Return results by program name and number of jobs; tell after each run what it took.

    Raises: RuntimeError where a build of ours differs from its first in any byte.
    """
    found = {
        program.name: {jobs: Result(program=program) for jobs in numbers} for program in programs
    }
    each = {(name, jobs): of for name, by in found.items() for jobs, of in by.items()}
    first = {}
    for repeat in range(max(repeats, peer_repeats)):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            expected = None
            for (name, jobs), result in each.items():
                if repeat >= (peer_repeats if result.program.is_peer else repeats):
                    continue
                place = Place(file=file, folder=Path(scratch) / f"{name}, {jobs}", jobs=jobs)
                place.folder.mkdir()
                tokens = run_once(result, place, expected, timeout=timeout)
                expected = expected or tokens
                if not result.program.is_peer:
                    made = digests(place.folder)
                    require_same(first.setdefault(name, made), made, place)
                if tokens != expected:
                    shutil.rmtree(place.folder)
                took = result.failure or f"{result.runs[-1].wall_seconds:.1f} s"
                last_line = took.strip().splitlines()[-1]
                tell(
                    f"{file.relative_to(folder)}, repeat {repeat}, {name}, jobs {jobs}: {last_line}"
                )
    return found


def digests(folder):
    """Return the sha256 of every output below a folder, by its path there."""
    return {
        str(path.relative_to(folder)): digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in NOT_COMPARED
    }


def digest(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_same(expected, found, place):
    if differing := sorted(
        path for path in expected | found if expected.get(path) != found.get(path)
    ):
        raise RuntimeError(
            f"{place.folder}: expected the {len(expected):,} files of the first build, byte for "
            f"byte, found {len(differing):,} that differ, {differing[0]} first, with {place.jobs} "
            "jobs; no time is worth printing"
        )


def table(found, *, text_bytes):
    """Yield a line per program and number of jobs, then what one core must do alone.

    `others` is how many cores the rest of the machine used meanwhile.
    """
    headings = ("wall s", "least", "cpu s", "others", "peak MB", "largest", "MB/s", "x jobs 1")
    yield f"  {'':24}{'jobs':>5}" + "".join(f"{heading:>9}" for heading in headings) + "  tokens"
    for name, by_jobs in found.items():
        for jobs, result in by_jobs.items():
            numbers = failed(result) if result.failure else numbers_of(result, by_jobs, text_bytes)
            yield f"  {name:24}{jobs:5}{numbers}"
        walls = {jobs: result.wall_seconds for jobs, result in by_jobs.items() if result.runs}
        if len(walls) > 1:
            yield f"    {described_alone(walls, text_bytes)}"


def numbers_of(result, by_jobs, text_bytes):
    others = statistics.median(run.others_seconds / run.wall_seconds for run in result.runs)
    ratio = times_as_fast(by_jobs, result)
    return row(result, ratio, text_bytes, others=[f"{others:.2f}"])


def times_as_fast(by_jobs, result):
    one = by_jobs.get(1)
    return f"{one.wall_seconds / result.wall_seconds:.2f}" if one and one.runs else "-"


def alone(walls):
    """Return the seconds that one core must work alone, and those that any number can share.

    Amdahl's law: of the line through the times over 1 / jobs, what is left with no end of cores;
    `walls` are seconds by number of jobs.
    """
    shared, rest = statistics.linear_regression([1 / jobs for jobs in walls], walls.values())
    total = rest + shared
    rest = min(max(rest, 0.0), total)  # a machine that others use gives any line
    return rest, total - rest


def described_alone(walls, text_bytes):
    rest, shared = alone(walls)
    predicted = rest + shared / MANY_CORES
    return (
        f"alone: what one core must do: {rest:.2f} of {rest + shared:.2f} s "
        f"({rest / (rest + shared):.0%}); {MANY_CORES} cores with a file or more for each would be "
        f"{(rest + shared) / predicted:.1f} times as fast ({text_bytes / 1e6 / predicted:.0f} MB/s)"
    )


def judged(blocks):
    """Yield a line per aim: met or MISSED; `blocks` is a list of (title, results)."""
    for title, found in blocks:
        by_jobs = found.get(RUN_CONFIG.name, {})
        if 1 in by_jobs and 2 in by_jobs:
            ratio = by_jobs[1].wall_seconds / by_jobs[2].wall_seconds
            numbers = f"{ratio:.2f} times as fast with 2 jobs, aim {TWICE_RATIO}"
            yield line(title, ratio >= TWICE_RATIO, numbers)
        if runs := [run for result in by_jobs.values() for run in result.runs]:
            largest = max(run.largest_bytes for run in runs)
            numbers = f"largest process {largest / 1e6:.0f} MB, aim {LARGEST_BYTES / 1e6:.0f} MB"
            yield line(title, largest < LARGEST_BYTES, numbers)

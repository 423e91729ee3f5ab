"""How time and memory scale with `--jobs`: whole builds on 1, 2, 4, ... cores.

    python -m benchmarks jobs

`tokflow run --config` into an empty store, with so many processes and pinned to as many cores, in
turn within each repeat. Tokens and all files of the builds are compared before a time is printed.

The measure of a build with N jobs is N builds with one job at once, on the same N cores, that share
nothing: a machine whose cores slow each other down does so to both. An N-th of their time is what
N jobs can reach.
"""

import hashlib
import os
import shutil
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from benchmarks.process import measure, pinned
from benchmarks.programs import ROOT, RUN_CONFIG, Place
from benchmarks.speed import Result, line, row, run_once

NOT_COMPARED = ("run.json", "hashes.jsonl")
"""Files that say when something was made, or changed: they are no output."""
SHARE_RATIO = 1.1
"""Aim for N jobs, against an N-th of N runs at once."""
LARGEST_BYTES = 600_000_000
"""Aim for the memory of a worker."""


def numbers_of_jobs():
    """Return 1, 2, 4, ... and how many cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [*(2**power for power in range(cores.bit_length()) if 2**power < cores), cores]


def measure_jobs(file, *, numbers, folder, repeats, program=RUN_CONFIG, tell=print):
    """Return results by number of jobs; tell after each run what it took.

    Raises: RuntimeError where a build differs from the first in any byte.
    """
    found = {jobs: Result(program=program) for jobs in numbers}
    first = None
    for repeat in range(repeats):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            expected = None
            for jobs, result in found.items():
                place = Place(file=file, folder=Path(scratch) / str(jobs), jobs=jobs)
                place.folder.mkdir()
                tokens = run_once(result, place, expected, timeout=None)
                made = digests(place.folder)
                first = first or made
                if differing := sorted(of for of in first | made if first.get(of) != made.get(of)):
                    raise RuntimeError(
                        f"{place.folder}: expected the {len(first):,} files of the first build, "
                        f"byte for byte, found {len(differing):,} that differ, {differing[0]} "
                        f"first, with {jobs} jobs; no time is worth printing"
                    )
                if expected:
                    shutil.rmtree(place.folder)
                expected = expected or tokens
                took = result.runs[-1].wall_seconds
                result.at_once_seconds.append(took if jobs == 1 else run_at_once(program, place))
                tell(f"{file.relative_to(folder)}, repeat {repeat}, jobs {jobs}: {took:.1f} s")
    return found


def run_at_once(program, place):
    """Return the seconds of as many runs as `place` has jobs, each with one: they begin together,
    on as many cores, and share nothing but the file."""
    with (
        tempfile.TemporaryDirectory(dir=place.folder.parent) as scratch,
        pinned(place.jobs),  # so are the threads that start here
        ThreadPoolExecutor(place.jobs) as pool,
    ):
        folders = (Path(tempfile.mkdtemp(dir=scratch)) for _ in range(place.jobs))
        commands = [program.command(replace(place, folder=of, jobs=1)) for of in folders]
        runs = pool.map(lambda of: measure(of, folder=ROOT, environment={}), commands)
        return max(run.wall_seconds for run in runs)


def digests(folder):
    """Return the sha256 of every output below a folder, by its path there."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in NOT_COMPARED:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256")
            found[str(path.relative_to(folder))] = digest.hexdigest()
    return found


def table(found, *, text_bytes):
    """Yield a line per number of jobs.

    `others` is how many cores the rest of the machine used meanwhile, `x share` the time in terms
    of an N-th of N runs at once.
    """
    headings = ("wall s", "least", "cpu s", "others", "peak MB", "largest", "MB/s", "x share")
    yield f"  {'jobs':>5}" + "".join(f"{heading:>9}" for heading in headings) + "  tokens"
    for jobs, result in found.items():
        others = statistics.median(run.others_seconds / run.wall_seconds for run in result.runs)
        ratio = f"{share_ratio(result, jobs):.2f}"
        yield f"  {jobs:5}{row(result, ratio, text_bytes, others=[f'{others:.2f}'])}"


def share_ratio(result, jobs):
    """Return the time with N jobs in terms of an N-th of N runs at once, both medians."""
    return result.wall_seconds / (statistics.median(result.at_once_seconds) / jobs)


def predictions(found):
    """Yield for each number of jobs what is serial, and what more cores could reach with it if they
    did not slow each other down.

    Serial are the seconds that one core works while the others wait, for a start, an end, or a last
    task: of one job's time `alone` that of N jobs is serial + slowed * (alone - serial) / N, and
    that of N runs at once tells how much the cores slow each other down.
    """
    alone = found[1].wall_seconds
    for jobs in sorted(found.keys() - {1}):
        slowed = statistics.median(found[jobs].at_once_seconds) / alone
        of_one = (found[jobs].wall_seconds - slowed * alone / jobs) / max(1 - slowed / jobs, 1e-9)
        serial = min(max(of_one, 0.0), alone)
        times = (f"{serial + (alone - serial) / cores:.1f} s on {cores}" for cores in (16, 64))
        share = f"serial {serial:.2f} s ({serial / alone:.0%} of 1 job)"
        yield f"  {jobs:5}  {share}: {', '.join(times)} cores"


def judged(blocks):
    """Yield a line per aim: met or MISSED; `blocks` is a list of (title, results)."""
    for title, found in blocks:
        for jobs, result in found.items():
            if jobs > 1:
                ratio = share_ratio(result, jobs)
                numbers = f"{jobs} jobs take {ratio:.2f} times their share of {jobs} runs at once"
                yield line(title, ratio <= SHARE_RATIO, f"{numbers}, aim {SHARE_RATIO}")
        largest = max(run.largest_bytes for of in found.values() for run in of.runs)
        numbers = f"largest process {largest / 1e6:.0f} MB, aim {LARGEST_BYTES / 1e6:.0f} MB"
        yield line(title, largest < LARGEST_BYTES, numbers)

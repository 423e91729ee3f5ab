"""Run the programs on one file, in turn within each repeat, compare what they made, and print it.

Every program is a whole process, on a file that is in the page cache, into an empty folder with
empty caches. The first program that makes token ids is the one that all others are compared with.
"""

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.process import Measurement, OverTimeError, measure
from benchmarks.programs import CORE, EOS_ID, RAW_ENGINE, ROOT, Place, Program

PEER_RATIO = 15
PEER_BYTES = 300_000_000
PEAK_BYTES = 700_000_000
HEADINGS = ("wall s", "least", "cpu s", "peak MB", "largest", "MB/s", "x core")


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A program's token ids against those of the first program."""

    num_tokens: int
    num_more: int
    """Than the first has; negative where tokens are missing."""
    is_same: bool
    num_missing: int
    """Documents of the first that are not there, token for token; 0 in another order."""
    num_documents: int


@dataclass(kw_only=True, slots=True)
class Result:
    """What the runs of one program gave."""

    program: Program
    runs: list[Measurement] = field(default_factory=list)
    at_once_seconds: list[float] = field(default_factory=list)
    """Of N jobs: times of N runs at once, each with one job."""
    comparison: Comparison | None = None
    """None where the program makes no tokens, or failed."""
    failure: str | None = None

    @property
    def failed(self):
        """The last line that it printed, where it failed."""
        return self.failure and self.failure.strip().splitlines()[-1]

    @property
    def wall_seconds(self):
        return statistics.median(run.wall_seconds for run in self.runs)

    @property
    def peak_bytes(self):
        return max(run.peak_bytes for run in self.runs)


def measure_file(file, programs, *, repeats, peer_repeats, timeout, tell=print):
    """Return a result per program, in the same order; tell after each run what it took.

    Raises: RuntimeError where a program of our own fails or makes other token ids.
    """
    results = [Result(program=program) for program in programs]
    for repeat in range(max(repeats, peer_repeats)):
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            place = Place(file=file, folder=Path(folder))
            expected = None
            for result in results:
                if repeat < (peer_repeats if result.program.is_peer else repeats):
                    tokens = run_once(result, place, expected, timeout=timeout)
                    expected = expected or tokens
                    took = result.failed or f"{result.runs[-1].wall_seconds:.1f} s"
                    tell(f"{file.name}, repeat {repeat}, {result.program.name}: {took}")
    return results


def run_once(result, place, expected, *, timeout):
    """Add a run to `result`; return the path of its token ids, None where it makes none."""
    program = result.program
    if result.failure:
        return None
    try:
        one, tokens = run(program, place, timeout=timeout if program.is_peer else None)
    except (RuntimeError, OverTimeError) as error:
        if not program.is_peer:
            raise
        result.failure = str(error)
        return None
    result.runs.append(one)
    if tokens:
        result.comparison = compare(expected or tokens, tokens)
        if not program.is_peer and not result.comparison.is_same:
            raise RuntimeError(
                f"{tokens}: expected the token ids of {expected}, found {program.name}'s that "
                f"differ ({result.comparison}); no time is worth printing"
            )
    return tokens


def run(program, place, *, timeout=None):
    """Return what `program` took, and the path of its token ids, None where it makes none."""
    environment = {name: str(value) for name, value in program.environment(place).items()}
    if program.prepare:
        measure(program.prepare(place), folder=ROOT, environment=environment)
    command = program.command(place)
    folder = program.working_folder(place)
    one = measure(
        command, folder=folder, environment=environment, timeout=timeout, num_cores=place.jobs
    )
    if program.read:
        measure(program.read(place), folder=ROOT, environment=environment)
    if program.output is None:
        return one, None
    path = place.folder / program.output
    if not path.is_file():
        raise RuntimeError(f"{path}: expected the token ids of {program.name}, found none")
    return one, path


def compare(expected, found):
    command = [sys.executable, "-m", "benchmarks.compare", expected, found, EOS_ID]
    with tempfile.NamedTemporaryFile("r") as output:
        measure([*command, output.name], folder=ROOT, environment={})
        return Comparison(**json.load(output))


def table(results, *, text_bytes):
    """Yield a line per program: the columns of `HEADINGS`, then how its tokens compare."""
    core = next((one for one in results if one.program is CORE and one.runs), None)
    yield f"  {'':24}" + "".join(f"{heading:>9}" for heading in HEADINGS) + "  tokens"
    for result in results:
        ratio = f"{result.wall_seconds / core.wall_seconds:.1f}" if core and result.runs else "-"
        numbers = f"   {result.failed}" if result.failure else row(result, ratio, text_bytes)
        yield f"  {result.program.name:24}{numbers}".rstrip()


def row(result, first, text_bytes, *, others=()):
    """Return a run's numbers; the last is the time in terms of `first`, where there is one."""
    runs, wall = result.runs, result.wall_seconds
    numbers = [
        f"{wall:.2f}",
        f"{min(run.wall_seconds for run in runs):.2f}",
        f"{statistics.median(run.cpu_seconds for run in runs):.2f}",
        *others,
        f"{result.peak_bytes / 1e6:.0f}",
        f"{max(run.largest_bytes for run in runs) / 1e6:.0f}",
        f"{text_bytes / 1e6 / wall:.1f}" if result.program.output else "-",
        first,
    ]
    return "".join(f"{number:>9}" for number in numbers) + f"  {verdict(result)}"


def verdict(result):
    found = result.comparison
    if found is None:
        return ""
    if found.is_same:
        return "same"
    if found.num_missing == 0 and found.num_more == 0:
        return "same, documents in another order"
    reason = result.program.difference or "reason not known"
    return (
        f"differ: {found.num_more:+,} in {found.num_missing:,} of {found.num_documents:,} "
        f"documents ({reason})"
    )


def aims(blocks):
    """Yield a line per aim: met or MISSED, with the numbers.

    `blocks` is a list of (title, bytes of text, results).
    """
    for title, text_bytes, results in blocks:
        measured = {one.program.name: one for one in results if one.runs}
        core = measured.get(CORE.name)
        if core is None:
            continue
        if raw := measured.get(RAW_ENGINE.name):
            numbers = f"core {core.wall_seconds:.2f} s, raw engine {raw.wall_seconds:.2f} s"
            yield line(title, core.wall_seconds <= raw.wall_seconds, numbers)
        peers = [one for one in results if one.program.is_peer and one.runs]
        if text_bytes >= PEER_BYTES and peers:  # met for the fastest, it is met for all
            fastest = min(peers, key=lambda one: one.wall_seconds)
            ratio = fastest.wall_seconds / core.wall_seconds
            numbers = (
                f"the fastest of {len(peers)} peers, {fastest.program.name}, takes {ratio:.1f}"
            )
            numbers += f" times as long as the core, aim {PEER_RATIO}"
            yield line(title, ratio >= PEER_RATIO, numbers)
        peak = f"peak of the core {core.peak_bytes / 1e6:.0f} MB, aim {PEAK_BYTES / 1e6:.0f} MB"
        yield line(title, core.peak_bytes < PEAK_BYTES, peak)


def line(title, is_met, numbers):
    return judged(is_met, f"{title:28}{numbers}")


def judged(is_met, numbers):
    """Return the line of an aim: met or MISSED, with the numbers."""
    return f"  {'met' if is_met else 'MISSED':8}{numbers}"

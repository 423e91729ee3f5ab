"""Run the programs on one file, in turn within each repeat, and compare what they made.

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
from benchmarks.programs import EOS_ID, ROOT, Place, Program


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
    comparison: Comparison | None = None
    """None where the program makes no tokens, or failed."""
    failure: str | None = None

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
                    tell(progress(file, repeat, result))
    return results


def progress(file, repeat, result):
    took = result.failure or f"{result.runs[-1].wall_seconds:.1f} s"
    return f"{file.name}, repeat {repeat}, {result.program.name}: {took.strip().splitlines()[-1]}"


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
    command = [sys.executable, "-m", "benchmarks.compare", expected, found, "--eos", EOS_ID]
    with tempfile.NamedTemporaryFile("r") as output:
        measure([*command, "--output", output.name], folder=ROOT, environment={})
        return Comparison(**json.load(output))

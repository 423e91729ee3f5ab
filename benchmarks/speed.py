"""One table per file: what each program took, and how that compares with the raw engine.

Every program is a whole process, started in turn within each repeat, on a file that is in the
page cache, into an empty folder. Times are printed only when all programs gave the same bytes.
"""

import filecmp
import statistics
import tempfile
from pathlib import Path

from benchmarks.process import measure
from benchmarks.programs import ROOT, Place


def measure_file(file, *, repeats, programs):
    """Return measurements by program name, and how many tokens each program made.

    Every program is run once in each repeat.

    Raises: RuntimeError where two programs gave different token ids.
    """
    measurements = {program.name: [] for program in programs}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            place = Place(file=file, folder=Path(folder))
            for program in programs:
                measurements[program.name].append(run(program, place))
            num_tokens = count_equal_tokens(programs, place)
    return measurements, num_tokens


def run(program, place):
    environment = {name: str(value) for name, value in program.environment(place).items()}
    return measure(program.command(place), folder=ROOT, environment=environment)


def count_equal_tokens(programs, place):
    """Return how many tokens the programs made, after comparing every byte of them."""
    outputs = {program.name: token_file(program, place) for program in programs if program.output}
    if not outputs:
        return 0
    (first, expected), *others = outputs.items()
    for name, path in others:
        if not filecmp.cmp(expected, path, shallow=False):
            raise RuntimeError(
                f"{path}: expected the {expected.stat().st_size:,} bytes of {first}, found "
                f"{path.stat().st_size:,} bytes of {name} that differ; no time is worth printing"
            )
    return expected.stat().st_size // 2


def token_file(program, place):
    path = place.folder / program.output
    if not path.is_file():
        raise RuntimeError(f"{path}: expected the token ids that {program.name} makes, found none")
    return path


def table(measurements):
    """Return lines: median and least wall time, median processor time, largest peak, ratio."""
    walls = {
        name: statistics.median(one.wall_seconds for one in runs)
        for name, runs in measurements.items()
    }
    baseline = next(iter(walls))
    yield f"  {'':28}{'wall s':>9}{'least':>9}{'cpu s':>9}{'peak MB':>9}  x {baseline}"
    for name, runs in measurements.items():
        least = min(one.wall_seconds for one in runs)
        cpu = statistics.median(one.cpu_seconds for one in runs)
        peak = max(one.peak_bytes for one in runs)
        yield (
            f"  {name:28}{walls[name]:9.2f}{least:9.2f}{cpu:9.2f}{peak / 1e6:9.0f}"
            f"{walls[name] / walls[baseline]:8.2f}"
        )

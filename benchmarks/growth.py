"""How time and memory grow with the text: they should be linear and flat.

    python -m benchmarks growth

tokflow's core and the raw engine on the same text in several sizes, each a whole process.
"""

import statistics
import tempfile
from pathlib import Path

from benchmarks.programs import CORE, RAW_ENGINE, Place
from benchmarks.speed import run

PROGRAMS = (CORE, RAW_ENGINE)
FLAT_BYTES = 100_000_000
"""Memory is flat where it grows by no more than this from 100 MB of text to the largest size."""
LINEAR_FRACTION = 0.15
"""Time is linear where no size is further from the line than this part of its time."""


def measure_growth(files, *, repeats):
    """Return measurements by program name and size; `files` maps sizes in bytes to files."""
    found = {program.name: {size: [] for size in files} for program in PROGRAMS}
    for size, file in files.items():
        for _ in range(repeats):
            for program in PROGRAMS:
                with tempfile.TemporaryDirectory(dir=file.parent) as folder:
                    one, _ = run(program, Place(file=file, folder=Path(folder)))
                found[program.name][size].append(one)
    return found


def table(found):
    """Yield a line per program and size, then what they say about the growth."""
    yield f"  {'':16}{'MB text':>9}{'wall s':>9}{'MB/s':>9}{'peak MB':>9}"
    for name, sizes in found.items():
        for size, runs in sizes.items():
            wall = median_wall(runs)
            yield (
                f"  {name:16}{size / 1e6:9.0f}{wall:9.2f}{size / 1e6 / wall:9.1f}"
                f"{peak(runs) / 1e6:9.0f}"
            )
        if len(sizes) > 1:
            yield f"    time: {time_verdict(sizes)}"
            yield f"    memory: {memory_verdict(sizes)}"


def time_verdict(sizes):
    walls = {size: median_wall(runs) for size, runs in sizes.items()}
    slope, fixed = statistics.linear_regression(walls, walls.values())
    worst = max(abs(wall - fixed - slope * size) / wall for size, wall in walls.items())
    is_linear = "linear" if worst <= LINEAR_FRACTION else "NOT linear"
    return (
        f"{is_linear}: {fixed:.2f} s + {slope * 1e9:.2f} ms per MB "
        f"({1 / slope / 1e6:.0f} MB/s), off by at most {worst:.0%}"
    )


def memory_verdict(sizes):
    from_size = min((size for size in sizes if size >= 100_000_000), default=min(sizes))
    to_size = max(sizes)
    more = peak(sizes[to_size]) - peak(sizes[from_size])
    is_flat = "flat" if more <= FLAT_BYTES else "NOT flat"
    return (
        f"{is_flat}: {more / 1e6:+.0f} MB from {from_size / 1e6:.0f} to {to_size / 1e6:.0f} MB "
        f"of text, aim {FLAT_BYTES / 1e6:.0f}"
    )


def median_wall(runs):
    return statistics.median(run.wall_seconds for run in runs)


def peak(runs):
    return max(run.peak_bytes for run in runs)

"""How time and memory grow with the text: they should be linear and flat.

    python -m benchmarks growth

tokflow's core and the raw engine on the same text in several sizes, each a whole process.
"""

import statistics

from benchmarks.programs import CORE, RAW_ENGINE
from benchmarks.speed import measure_file

PROGRAMS = (CORE, RAW_ENGINE)
FLAT_BYTES = 100_000_000
"""Memory is flat where it grows by no more than this from 100 MB of text to the largest size."""
LINEAR_FRACTION = 0.15
"""Time is linear where no size is further from the line than this part of its time."""


def measure_growth(files, *, repeats, tell=print):
    """Return results by program name and size; `files` maps sizes in bytes to files."""
    how = {"repeats": repeats, "peer_repeats": 0, "timeout": None, "tell": tell}
    found = {program.name: {} for program in PROGRAMS}
    for size, file in files.items():
        for result in measure_file(file, PROGRAMS, **how):
            found[result.program.name][size] = result
    return found


def table(found):
    """Yield a line per program and size, then what they say about the growth."""
    yield f"  {'':16}{'MB text':>9}{'wall s':>9}{'MB/s':>9}{'peak MB':>9}"
    for name, sizes in found.items():
        for size, one in sizes.items():
            yield (
                f"  {name:16}{size / 1e6:9.0f}{one.wall_seconds:9.2f}"
                f"{size / 1e6 / one.wall_seconds:9.1f}{one.peak_bytes / 1e6:9.0f}"
            )
        if len(sizes) > 1:
            yield f"    time: {time_verdict(sizes)}"
            yield f"    memory: {memory_verdict(sizes)}"


def time_verdict(sizes):
    walls = {size: one.wall_seconds for size, one in sizes.items()}
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
    more = sizes[to_size].peak_bytes - sizes[from_size].peak_bytes
    is_flat = "flat" if more <= FLAT_BYTES else "NOT flat"
    return (
        f"{is_flat}: {more / 1e6:+.0f} MB from {from_size / 1e6:.0f} to {to_size / 1e6:.0f} MB "
        f"of text, aim {FLAT_BYTES / 1e6:.0f}"
    )

"""The tables, as lines of text."""

import statistics

from benchmarks.programs import CORE

HEADINGS = ("wall s", "least", "cpu s", "peak MB", "largest", "MB/s", "x core")
CORE_COLUMN = "x core"


def table(results, *, text_bytes):
    """Yield a line per program: the columns of `HEADINGS`, then how its tokens compare."""
    core = next((one for one in results if one.program is CORE and one.runs), None)
    yield f"  {'':24}" + "".join(f"{heading:>9}" for heading in HEADINGS) + "  tokens"
    for result in results:
        numbers = failed(result) if result.failure else row(result, core, text_bytes)
        yield f"  {result.program.name:24}{numbers}".rstrip()


def row(result, core, text_bytes):
    runs, wall = result.runs, result.wall_seconds
    ratio = f"{wall / core.wall_seconds:9.1f}" if core else f"{'-':>9}"
    speed = f"{text_bytes / 1e6 / wall:9.1f}" if result.program.output else f"{'-':>9}"
    return (
        f"{wall:9.2f}{min(run.wall_seconds for run in runs):9.2f}"
        f"{statistics.median(run.cpu_seconds for run in runs):9.2f}"
        f"{result.peak_bytes / 1e6:9.0f}{max(run.largest_bytes for run in runs) / 1e6:9.0f}"
        f"{speed}{ratio}  {verdict(result)}"
    )


def failed(result):
    """Return the reason in one line: the last that the program printed."""
    return f"   {result.failure.strip().splitlines()[-1]}"


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

"""What tokflow costs when there is next to nothing to do.

    python -m benchmarks fixed

A dataset of one tiny file, and one of many: each built for the first time and again, when there is
nothing to do, by each way to build it; with what Dagster's history grew by. `many_files` measures
the sensor and a scan of many more.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process import Measurement
from benchmarks.programs import DAGSTER_JOB, RUN_CONFIG, RUN_NAME, RUN_NAME_AGAIN, Place
from benchmarks.speed import judged, run

FIRST_SECONDS = 5
"""Aim for the first build of one tiny file."""
AIMS_OF_MANY = {RUN_NAME.name: 90, RUN_NAME_AGAIN.name: 3, RUN_CONFIG.name: 20, "config again": 3}
"""Aims for 1,000: each output of a first build of a declared dataset is an event of Dagster's."""
HISTORY_BYTES = 1_000_000
"""Aim for what a run that has nothing to do adds to Dagster's history."""
DOCUMENTS_PER_FILE = 3

WAYS = {
    RUN_NAME.name: RUN_NAME,
    RUN_NAME_AGAIN.name: RUN_NAME_AGAIN,
    DAGSTER_JOB.name: DAGSTER_JOB,
    RUN_CONFIG.name: RUN_CONFIG,
    "config again": RUN_CONFIG,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one way to build took, and what Dagster's history grew by."""

    measured: Measurement
    history_bytes: int


def measure_fixed(num_files, *, tell=print):
    """Return a cost per way to build, each after the ones before, of `num_files` tiny files; tell
    after each what it took."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(file=Path(folder) / "raw/*.jsonl", folder=Path(folder))
        write_tiny_files(place.file.parent, num_files)
        costs = {}
        for name, program in WAYS.items():
            before = history_bytes(place)
            measured, _ = run(program, place)
            costs[name] = Cost(measured=measured, history_bytes=history_bytes(place) - before)
            tell(f"{num_files:,} files, {name}: {measured.wall_seconds:.1f} s")
    return costs


def history_bytes(place):
    paths = (place.folder / "project/.dagster").rglob("*")
    return sum(path.stat().st_size for path in paths if path.is_file())


def write_tiny_files(folder, num_files):
    folder.mkdir()
    for number in range(num_files):
        words = " ".join(f"file {number} word {word}" for word in range(100))
        lines = [json.dumps({"text": f"{row}: {words}"}) for row in range(DOCUMENTS_PER_FILE)]
        (folder / f"{number:05}.jsonl").write_text("\n".join(lines) + "\n")


def table(found):
    """Yield a line per number of files and way, then the aims; `found` maps numbers to costs."""
    yield f"  {'':44}{'wall s':>9}{'cpu s':>9}{'peak MB':>9}{'history kB':>12}"
    for num_files, costs in found.items():
        for name, cost in costs.items():
            one = cost.measured
            times = f"{one.wall_seconds:9.2f}{one.cpu_seconds:9.2f}{one.peak_bytes / 1e6:9.0f}"
            title, history = f"{num_files:,} files, {name}", f"{cost.history_bytes / 1e3:12,.0f}"
            yield f"  {title:44}{times}{history}"
    for num_files, costs in found.items():
        aims = {RUN_NAME.name: FIRST_SECONDS} if num_files == 1 else AIMS_OF_MANY
        for name, most in aims.items():
            yield aim(f"{num_files:,} files, {name}", costs[name].measured.wall_seconds, most)
        for name in (RUN_NAME_AGAIN.name, DAGSTER_JOB.name):
            grown = costs[name].history_bytes
            kilobytes = f"{grown / 1e3:,.0f} kB, aim under {HISTORY_BYTES / 1e3:,.0f} kB"
            history = f"{num_files:,} files, {name}, history: {kilobytes}"
            yield judged(grown < HISTORY_BYTES, history)


def aim(title, seconds, most):
    return judged(seconds < most, f"{title}: {seconds:.2f} s, aim under {most} s")

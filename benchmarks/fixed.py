"""What tokflow costs when there is next to nothing to do.

    python -m benchmarks fixed

`tokflow run` on a declared dataset: of one tiny file, and of many; each for the first time and
again, when there is nothing to do. With --large also what `many_files` measures.
"""

import json
import tempfile
from pathlib import Path

from benchmarks.programs import RUN_NAME, RUN_NAME_AGAIN, Place
from benchmarks.speed import run

FIRST_SECONDS = 5
"""Aim for the first build of one tiny file."""
FIRST_SECONDS_OF_MANY = 90
"""Aim for the first build of 1,000, each of whose outputs is an event of Dagster's."""
AGAIN_SECONDS = 3
"""Aim for a run of 1,000 partitions that has nothing to do."""
DOCUMENTS_PER_FILE = 3


def measure_fixed(num_files):
    """Return measurements of the first run and of the one again, of `num_files` tiny files."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw"
        write_tiny_files(raw, num_files)
        place = Place(file=raw / "*.jsonl", folder=Path(folder))
        first, _ = run(RUN_NAME, place)
        again, _ = run(RUN_NAME_AGAIN, place)
    return first, again


def write_tiny_files(folder, num_files):
    folder.mkdir()
    for number in range(num_files):
        words = " ".join(f"file {number} word {word}" for word in range(100))
        lines = [json.dumps({"text": f"{row}: {words}"}) for row in range(DOCUMENTS_PER_FILE)]
        (folder / f"{number:05}.jsonl").write_text("\n".join(lines) + "\n")


def table(found):
    """Yield a line per number of files and run, then the aims; `found` maps numbers to pairs."""
    yield f"  {'':44}{'wall s':>9}{'cpu s':>9}{'peak MB':>9}"
    for num_files, pair in found.items():
        for name, one in zip(("first", "again"), pair, strict=True):
            yield row(f"{num_files:,} files, {name}", one)
    for num_files, (first, again) in found.items():
        most = FIRST_SECONDS if num_files == 1 else FIRST_SECONDS_OF_MANY
        yield aim(f"{num_files:,} files, first", first.wall_seconds, most)
        yield aim(f"{num_files:,} files, again", again.wall_seconds, AGAIN_SECONDS)


def row(title, one):
    times = f"{one.wall_seconds:9.2f}{one.cpu_seconds:9.2f}"
    return f"  {title:44}{times}{one.peak_bytes / 1e6:9.0f}"


def aim(title, seconds, most):
    word = "met" if seconds < most else "MISSED"
    return f"  {word:8}{title}: {seconds:.2f} s, aim under {most} s"

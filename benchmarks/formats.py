"""What each export format costs, once the tokens are there.

    python -m benchmarks formats

Every format is written by a process of its own from one store. Seconds are those of the export
with its index and checksums, but not of Python's start; peak memory is the whole process's.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process import Measurement, measure
from benchmarks.programs import ROOT, TOKFLOW, dataset_yaml

SEQUENCE_LENGTH = 2048
PARTS = {"train": {"fraction": 0.99}, "validation": {"fraction": 0.01}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """One format, written once."""

    seconds: float
    num_tokens: int
    num_bytes: int
    process: Measurement


def known_formats():
    """Return the names of all formats, asked of another process: this one stays small."""
    code = "from tokflow.exports import FORMATS; print(*FORMATS)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    return found.stdout.decode().split()


def measure_formats(file, names, *, repeats):
    """Return the fastest run of each format, from the tokens of one raw file."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        build(file, [], Path(folder), store)
        return {
            name: min(
                (write(file, name, Path(folder), store) for _ in range(repeats)),
                key=lambda written: written.seconds,
            )
            for name in names
        }


def write(file, name, folder, store):
    exports = store / "benchmark/exports" / name
    process = build(file, [name], folder, store)
    own = (exports / "latest" / "_tokflow").resolve()
    manifest = json.loads((own / "manifest.json").read_text())
    written = Written(
        seconds=json.loads((own / "run.json").read_text())["seconds"],
        num_tokens=sum(n for key, n in manifest["counts"].items() if key.endswith(".num_tokens")),
        num_bytes=sum(entry["num_bytes"] for entry in manifest["files"].values()),
        process=process,
    )
    shutil.rmtree(exports)
    return written


def build(file, exports, folder, store, *, parts=PARTS, keep="all"):
    config = folder / "formats.yaml"
    text = dataset_yaml(
        file,
        exports=exports,
        packing={"sequence_length": SEQUENCE_LENGTH},
        split={"parts": parts},
        keep=keep,
    )
    config.write_text(text)
    command = [*TOKFLOW, "run", "--config", config, "--store", store]
    return measure(command, folder=folder, environment={"PYTHONPATH": str(ROOT)})


def table(found):
    """Yield a line per format; `found` maps names to what was written."""
    base = found.get("bin")
    yield f"  {'':12}{'seconds':>9}{'x bin':>8}{'Mtokens/s':>11}{'MB':>8}{'peak MB':>9}"
    for name, one in found.items():
        ratio = f"{one.seconds / base.seconds:8.1f}" if base else f"{'':8}"
        yield (
            f"  {name:12}{one.seconds:9.2f}{ratio}{one.num_tokens / 1e6 / one.seconds:11.1f}"
            f"{one.num_bytes / 1e6:8.0f}{one.process.peak_bytes / 1e6:9.0f}"
        )

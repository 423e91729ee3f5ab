"""What many files cost: a first scan, ticks of the sensor, and a plan of which nothing is built.

    python -m benchmarks fixed [--large]
    python -m benchmarks.many_files CONFIG --history FOLDER --output FILE

The second registers all files in a fresh history of Dagster and times ticks of the files sensor,
without the imports, which `dagster dev` pays once.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.fixed import aim, row, write_tiny_files
from benchmarks.process import measure
from benchmarks.programs import ROOT, TOKFLOW, dataset_yaml

NUM_PLANNED = 100_000
NUM_TICKED = 10_000
PLAN_SECONDS = 20
PLAN_MB = 1_000
TICK_SECONDS = 3
SCAN_SECONDS = 30


def measure_plan(num_files):
    """Return what a plan of files takes whose sizes and checksums are known from a plan before."""
    with tempfile.TemporaryDirectory() as folder:
        config = declare(Path(folder), num_files)
        ours = {"folder": ROOT, "environment": {}}
        for words in (["run", "--partition", "00000.jsonl"], ["plan"]):
            measure([*TOKFLOW, *words, "--config", config], **ours)
        return measure([*TOKFLOW, "plan", "--config", config], **ours)


def measure_ticks(num_files):
    """Return the seconds of ticks, by what they find."""
    with tempfile.TemporaryDirectory() as folder:
        config, output = declare(Path(folder), num_files), Path(folder) / "ticks.json"
        options = ["--history", Path(folder) / "history", "--output", output]
        command = [sys.executable, "-m", "benchmarks.many_files", config, *options]
        measure(command, folder=ROOT, environment={})
        return json.loads(output.read_text())


def declare(folder, num_files):
    raw, config = folder / "raw", folder / "benchmark.yaml"
    write_tiny_files(raw, num_files)
    changes = {"tokenizer": {"kind": "bytes"}, "store": str(folder / "store")}
    config.write_text(dataset_yaml(raw / "*.jsonl", **changes))
    return config


def table(ticks, plan=None):
    """Yield a line for each tick and for the plan, if there is one, then the aims."""
    for found, seconds in ticks.items():
        yield f"  {f'{NUM_TICKED:,} files, {found}':44}{seconds:9.2f}"
    if plan is not None:
        yield row(f"plan of {NUM_PLANNED:,} files", plan)
    for found, seconds in ticks.items():
        most = SCAN_SECONDS if "scan" in found else TICK_SECONDS
        yield aim(f"{NUM_TICKED:,} files, {found}", seconds, most)
    if plan is not None:
        yield aim(f"plan of {NUM_PLANNED:,} files", plan.wall_seconds, PLAN_SECONDS)
        word = "met" if plan.peak_bytes < PLAN_MB * 1e6 else "MISSED"
        yield f"  {word:8}its memory: {plan.peak_bytes / 1e6:,.0f} MB, aim under {PLAN_MB:,} MB"


def main():
    import dagster as dg  # noqa: TID251 (its process runs no core that has to do without)

    from tokflow.build.dataset import load_dataset
    from tokflow.components.automation import files_sensor, scan_job
    from tokflow.components.file_partitions import sync_files

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    dataset = load_dataset(arguments.config)
    sensor = files_sensor(dataset, scan_job(dataset))
    arguments.history.mkdir()
    with dg.DagsterInstance.local_temp(str(arguments.history)) as instance:

        def tick():
            with dg.build_sensor_context(instance=instance) as context:
                return seconds_of(lambda: sensor(context))

        ticks = {"first scan": seconds_of(lambda: sync_files(instance, dataset))}
        ticks["tick, nothing changed"] = tick()
        changed = next((arguments.config.parent / "raw").iterdir())
        changed.write_text(changed.read_text() * 2)
        ticks["tick, one file changed"] = tick()
    arguments.output.write_text(json.dumps(ticks))


def seconds_of(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()

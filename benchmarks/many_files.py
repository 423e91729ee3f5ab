"""What many files cost: a first scan, ticks of the sensor, and a plan of which nothing is built.

    python -m benchmarks fixed [--large]
    python -m benchmarks.many_files CONFIG --history FOLDER --output FILE [--scan]

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
from benchmarks.speed import judged

NUM_UNBUILT = (20_000, 100_000)
UNBUILT_SECONDS = 80
"""Aim for the CPU of a plan, and of a scan, of the more files of which nothing is built."""
UNBUILT_TIMES = 5.5
"""Aim for how many times that of the fewer files this is."""
NUM_TICKED = 10_000
TICK_SECONDS = 3
SCAN_SECONDS = 30


def measure_unbuilt():
    """Return by what is done and number of files what a first plan, and a first scan, take while
    not even the tokenizer is there."""
    found = {"plan": {}, "scan": {}}
    for num_files in NUM_UNBUILT:
        with tempfile.TemporaryDirectory() as folder:
            config, ours = declare(Path(folder), num_files), {"folder": ROOT, "environment": {}}
            found["plan"][num_files] = measure([*TOKFLOW, "plan", "--config", config], **ours)
            found["scan"][num_files] = measure([*ticks_command(config), "--scan"], **ours)
    return found


def ticks_command(config):
    options = ["--history", config.parent / "history", "--output", config.parent / "ticks.json"]
    return [sys.executable, "-m", "benchmarks.many_files", config, *options]


def measure_ticks(num_files):
    """Return the seconds of ticks, by what they find."""
    with tempfile.TemporaryDirectory() as folder:
        measure(ticks_command(declare(Path(folder), num_files)), folder=ROOT, environment={})
        return json.loads((Path(folder) / "ticks.json").read_text())


def declare(folder, num_files):
    raw, config = folder / "raw", folder / "benchmark.yaml"
    write_tiny_files(raw, num_files)
    changes = {"tokenizer": {"kind": "bytes"}, "store": str(folder / "store")}
    config.write_text(dataset_yaml(raw / "*.jsonl", **changes))
    return config


def table(ticks):
    """Yield a line for each tick, then the aims."""
    for found, seconds in ticks.items():
        yield f"  {f'{NUM_TICKED:,} files, {found}':44}{seconds:9.2f}"
    for found, seconds in ticks.items():
        most = SCAN_SECONDS if "scan" in found else TICK_SECONDS
        yield aim(f"{NUM_TICKED:,} files, {found}", seconds, most)


def unbuilt_table(found):
    """Yield a line for each of `measure_unbuilt`, then the aims."""
    few, many = NUM_UNBUILT
    for name, of in found.items():
        for num_files, one in of.items():
            yield row(f"{name} of {num_files:,} files, nothing built", one)
    for name, of in found.items():
        cpu, times = of[many].cpu_seconds, of[many].cpu_seconds / of[few].cpu_seconds
        yield judged(
            cpu < UNBUILT_SECONDS and times < UNBUILT_TIMES,
            f"{name} of {many:,} files, nothing built: {cpu:.1f} s of CPU, aim under "
            f"{UNBUILT_SECONDS} s; {times:.1f} times those of {few:,}, aim under {UNBUILT_TIMES}",
        )


def main():
    import dagster as dg  # noqa: TID251 (its process runs no core that has to do without)

    from tokflow.components import decisions
    from tokflow.components.file_partitions import sync_files
    from tokflow.components.text_dataset import files_sensor, scan_job
    from tokflow.pipeline.declared import load_datasets

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--scan", action="store_true", help="only the scan job's work")
    arguments = parser.parse_args()
    [dataset] = load_datasets(arguments.config)
    decisions.CALM_SECONDS = 0.0  # else a tick would wait for the file that has just been written
    sensor = files_sensor([dataset], [scan_job(dataset)])
    arguments.history.mkdir()
    with dg.DagsterInstance.local_temp(str(arguments.history)) as instance:
        if arguments.scan:
            sync_files(instance, dataset, with_status=True)
            return
        cursor = None

        def tick():
            nonlocal cursor
            with dg.build_sensor_context(instance=instance, cursor=cursor) as context:
                cursor = sensor(context).cursor

        ticks = {"first scan": seconds_of(lambda: sync_files(instance, dataset))}
        ticks["tick, nothing changed"] = seconds_of(tick)
        changed = next((arguments.config.parent / "raw").iterdir())
        changed.write_text(changed.read_text() * 2)
        ticks["tick, one file changed"] = seconds_of(tick)
    arguments.output.write_text(json.dumps(ticks))


def seconds_of(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()

"""What many files cost: a first scan and ticks of the sensor.

    python -m benchmarks fixed
    python -m benchmarks.many_files CONFIG HISTORY_FOLDER OUTPUT

The second registers all files in a fresh history of Dagster and times ticks of the files sensor,
without the imports, which `dagster dev` pays once.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.fixed import aim, write_tiny_files
from benchmarks.process import measure
from benchmarks.programs import ROOT, dataset_yaml

NUM_TICKED = 10_000
TICK_SECONDS = 3
SCAN_SECONDS = 30


def measure_ticks(num_files):
    """Return the seconds of ticks, by what they find."""
    with tempfile.TemporaryDirectory() as folder:
        names = ("raw", "benchmark.yaml", "history", "ticks.json")
        raw, config, history, output = (Path(folder) / name for name in names)
        write_tiny_files(raw, num_files)
        changes = {"tokenizer": {"kind": "bytes"}, "store": f"{folder}/store"}
        config.write_text(dataset_yaml(raw / "*.jsonl", **changes))
        command = [sys.executable, "-m", "benchmarks.many_files", config, history, output]
        measure(command, folder=ROOT, environment={})
        return json.loads(output.read_text())


def table(ticks):
    """Yield a line for each tick, then the aims."""
    for found, seconds in ticks.items():
        yield f"  {f'{NUM_TICKED:,} files, {found}':44}{seconds:9.2f}"
    for found, seconds in ticks.items():
        most = SCAN_SECONDS if "scan" in found else TICK_SECONDS
        yield aim(f"{NUM_TICKED:,} files, {found}", seconds, most)


def main():
    import dagster as dg  # noqa: TID251 (its process runs no core that has to do without)

    from tokflow.components import decisions
    from tokflow.components.file_partitions import sync_files
    from tokflow.components.text_dataset import files_sensor, scan_job
    from tokflow.pipeline.declared import load_datasets

    config, history, output = map(Path, sys.argv[1:])
    [dataset] = load_datasets(config)
    decisions.CALM_SECONDS = 0.0  # else a tick would wait for the file that has just been written
    sensor = files_sensor([dataset], [scan_job(dataset)])
    history.mkdir()
    with dg.DagsterInstance.local_temp(str(history)) as instance:
        cursor = None

        def tick():
            nonlocal cursor
            with dg.build_sensor_context(instance=instance, cursor=cursor) as context:
                cursor = sensor(context).cursor

        ticks = {"first scan": seconds_of(lambda: sync_files(instance, dataset))}
        ticks["tick, nothing changed"] = seconds_of(tick)
        changed = next((config.parent / "raw").iterdir())
        changed.write_text(changed.read_text() * 2)
        ticks["tick, one file changed"] = seconds_of(tick)
    output.write_text(json.dumps(ticks))


def seconds_of(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()

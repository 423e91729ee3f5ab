"""A small dataset on a server of objects that answers late: requests counted, and time taken."""

import os
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from benchmarks.scale_requests import Shape, built, planned, total

NUM_FILES = 200
LATENCY_SECONDS = 0.02
PARTS = {"parts": {"train": {"fraction": 0.9}, "validation": {"fraction": 0.1}}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What one command asked for, and should have by the model."""

    name: str
    counted: Counter
    expected: Counter
    seconds: float


def declare_on(folder, store, num_files):
    """Return a dataset of tiny files with two exports, of three files each."""
    from tokflow_tests.tiny import declare

    files = {f"{n:05}.jsonl": [f"{n} {m}" for m in range(20)] for n in range(num_files)}
    return declare(folder, files, store=store, split=PARTS, exports=["bin", "parquet"])


def shape_of(num_files):
    """Return the outputs of that dataset."""
    return Shape(num_files=num_files, tokenizer_files=0, export_files=((0, 0, 0),) * 2)


def steps_on(store, folder, cache, num_files):
    """Yield what a build, a plan with an empty cache and one with its cache ask a store for."""
    from tokflow.pipeline.plan import make_plan
    from tokflow.pipeline.run import build_dataset

    dataset, shape = declare_on(folder, f"{store.url}/store", num_files), shape_of(num_files)
    steps = {
        "first build": (build_dataset, total(built(shape).values())),
        "plan, empty cache": (make_plan, planned(shape, is_known=False)),
        "plan": (make_plan, planned(shape, is_known=True)),
    }
    for name, (do, expected) in steps.items():
        if "empty" in name:
            shutil.rmtree(cache)
        started = time.perf_counter()
        with store.counted() as counted:
            do(dataset)
        seconds = time.perf_counter() - started
        yield Step(name=name, counted=+counted, expected=+expected, seconds=seconds)


def measure(num_files=NUM_FILES, latency=LATENCY_SECONDS):
    """Yield a line for each step, on a server of this process."""
    from tokflow_tests.object_store import serve_objects

    yield f"{num_files} files on a server of this machine that answers after {1000 * latency:g} ms"
    with tempfile.TemporaryDirectory() as folder, serve_objects() as server:
        cache = Path(folder) / "cache"
        with patch.dict(os.environ, server.environment(), TOKFLOW_CACHE=str(cache)):
            store = server.with_new_bucket()
            store.fail("slow", seconds=latency, times=None)
            for step in steps_on(store, Path(folder), cache, num_files):
                word = "as" if step.counted == step.expected else f"NOT {dict(step.expected)}, as"
                yield (
                    f"  {step.name:20}{step.seconds:8.2f} s  {dict(step.counted)}, {word} the "
                    "model says"
                )

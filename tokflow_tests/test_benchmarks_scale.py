"""The model of scale says exactly which requests a build makes; its tables are computed from it."""

import shutil
from pathlib import Path

import pytest

from benchmarks.scale_requests import Shape, built, got, planned, put, total
from tokflow.documents import ranges
from tokflow.exports import stage
from tokflow.pipeline import output_tasks
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow.store.remote import objects_at
from tokflow_tests.object_store import UNIT, ObjectStore, let_parts_be_short
from tokflow_tests.tiny import build, declare


def test_the_model_says_exactly_which_requests_a_build_and_a_plan_make(
    tmp_path: Path, object_store: ObjectStore
):
    parts = {"parts": {"train": {"fraction": 0.9}, "validation": {"fraction": 0.1}}}
    files = {f"{n}.jsonl": [f"{n} {m}" for m in range(20)] for n in range(3)}
    given = {"store": f"{object_store.url}/store", "exports": ["bin", "parquet"]}
    dataset = declare(tmp_path, files, split=parts, **given)
    shape = Shape(num_files=3, tokenizer_files=0, export_files=((0, 0, 0),) * 2)

    with object_store.counted() as of_build:
        build_dataset(dataset)
    with object_store.counted() as of_plan:
        make_plan(dataset)
    shutil.rmtree(tmp_path / "cache")
    with object_store.counted() as of_plan_without_cache:
        make_plan(dataset)

    assert +of_build == +total(built(shape).values())
    assert +of_plan == +planned(shape, is_known=True)
    assert +of_plan_without_cache == +planned(shape, is_known=False)


@pytest.mark.slow
def test_so_it_does_of_large_files_that_are_read_and_exported_in_segments(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(output_tasks, "KEPT_HERE_BYTES", 0)
    monkeypatch.setattr(ranges, "RANGE_BYTES", 500)
    monkeypatch.setattr(stage, "SEGMENT_TOKENS", 500)
    texts = [f"{number} text" * 5 for number in range(60)]
    files = dict.fromkeys(("a.jsonl", "b.jsonl"), texts)
    parquet = {"format": "parquet", "shard_size": 100 * 68}
    store = f"{object_store.url}/store"
    dataset = declare(tmp_path, files, store=store, exports=[parquet])
    with object_store.counted() as counted:
        build(dataset)

    manifest = {of.stage: of for of in graph_of(dataset).outputs()}["export"].manifest()
    sizes = tuple(entry.num_bytes for entry in manifest.files.values())
    tokens = graph_of(dataset).tokens("a.jsonl").manifest()
    shape = Shape(
        num_files=2,
        num_ranges=len(tokens.details["segments"]),
        token_bytes=max(entry.num_bytes for entry in tokens.files.values()),
        tokenizer_files=0,
        export_files=(sizes,),
        has_export_segments=True,
        published=("tokens", "export"),
    )
    assert +counted == total(built(shape).values())


@pytest.mark.parametrize("num_bytes", [0, 1000, 11 * UNIT])
def test_so_it_does_of_a_file_that_goes_and_comes_in_parts(
    num_bytes: int, tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    let_parts_be_short(monkeypatch)
    path, objects = tmp_path / "file", objects_at(object_store.url)
    path.write_bytes(bytes(num_bytes))
    with object_store.counted() as sent:
        objects.put_file(path, "file")
    with object_store.counted() as received:
        objects.get_file("file", path, num_bytes)

    assert (+sent, +received) == (put(num_bytes), got(num_bytes))

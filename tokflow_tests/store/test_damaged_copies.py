"""Damaged copies in the cache of a store at a URL: nothing is made from them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokflow.exports import stage
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.store import integrity
from tokflow.store.integrity import ReadAgainError, Reading, check_files, once_more, trust_files
from tokflow.store.manifest import MANIFEST_NAME
from tokflow_tests.cli.commands import run
from tokflow_tests.disks import flip
from tokflow_tests.object_store import ObjectStore, another_machine
from tokflow_tests.outputs import content
from tokflow_tests.tiny import build, declare, write_yaml

TEXTS: dict[str, list[str]] = {"a.jsonl": ["one two three " * 50_000], "b.jsonl": ["four", "five"]}
"""700,000 tokens of 2 bytes each."""

FORMATS = ["bin", "parquet"]


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The files of each export, by its format, as a store on this disk has them."""
    dataset = declare(tmp_path_factory.mktemp("right"), TEXTS, exports=FORMATS)
    build(dataset)
    return {name: exported(dataset, name) for name in FORMATS}


@pytest.fixture(scope="module")
def objects(
    tmp_path_factory: pytest.TempPathFactory, object_server: ObjectStore
) -> dict[str, bytes]:
    """The objects of the dataset, of which nothing was exported but as mds."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with another_machine(object_server, folder) as store:
        build(declare(folder, TEXTS, store=f"{store.url}/store", exports=["mds"]))
    return store.contents()


@pytest.fixture
def declared(
    tmp_path: Path, object_store: ObjectStore, objects: dict[str, bytes]
) -> Callable[..., Dataset]:
    """Return what declares the dataset at a URL, of which only the manifests are on this disk."""
    for key, data in objects.items():
        object_store.put(key, data)
    url = f"{object_store.url}/store"
    first = declare(tmp_path, TEXTS, store=url)
    first.store.refresh(first.folder)
    return lambda **fields: declare(tmp_path, store=url, **fields)


@pytest.fixture
def next_run() -> Callable[[], None]:
    """Return what makes this process forget what it knows of files, as if it were another."""
    return integrity.arrived.clear


def exported(dataset: Dataset, name: str) -> dict[str, bytes]:
    [folder] = (dataset.folder / "exports" / name).glob("[0-9a-f]*")
    return content(folder)


def tokens_of(dataset: Dataset, key: str) -> Path:
    graph = graph_of(dataset)
    graph.open_tokens(key).tokens()  # so that they come
    return graph.open_tokens(key).folder / "tokens.bin"


@pytest.mark.parametrize("name", FORMATS)
def test_a_bit_that_flips_before_an_export_is_made_is_not_in_it(
    name: str,
    declared: Callable[..., Dataset],
    right: dict[str, dict[str, bytes]],
    next_run: Callable[[], None],
):
    dataset = declared(exports=[name])
    flip(tokens_of(dataset, "a.jsonl"))
    next_run()

    build(dataset)

    assert exported(dataset, name) == right[name]


@pytest.mark.parametrize("name", FORMATS)
def test_a_bit_that_flips_while_an_export_is_made_is_not_in_it(
    name: str,
    declared: Callable[..., Dataset],
    right: dict[str, dict[str, bytes]],
    object_store: ObjectStore,
):
    dataset = declared(exports=[name])
    path = tokens_of(dataset, "a.jsonl")
    of_b = "*/tokens/b.jsonl/*/tokens.bin"  # is fetched while the export is made
    fault = object_store.fail("slow", "GET", of_b, then=lambda: flip(path))

    build(dataset)

    assert fault.met == 1
    assert exported(dataset, name) == right[name]


@pytest.mark.parametrize("of_stage", ["tokens", "split", "sequences"])
def test_segments_of_an_export_are_not_made_from_flipped_tables(
    of_stage: str,
    declared: Callable[..., Dataset],
    right: dict[str, dict[str, bytes]],
    next_run: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(stage, "SEGMENT_TOKENS", 300_000)
    dataset = declared(exports=["parquet"])
    [folder] = (
        path.parents[1] for path in (dataset.folder / of_stage / "a.jsonl").rglob(MANIFEST_NAME)
    )
    check_files(dataset.store.read(folder))  # which fetches them
    [table] = folder.glob("*.parquet")
    flip(table)
    next_run()

    build(dataset)

    assert exported(dataset, "parquet") == right["parquet"]


def test_a_copy_that_is_damaged_again_is_an_error(
    declared: Callable[..., Dataset],
):
    shard = graph_of(declared()).open_tokens("b.jsonl")
    times = []

    def read() -> None:
        with Reading():
            shard.tokens()
            times.append(flip(shard.folder / "tokens.bin"))

    with pytest.raises(ReadAgainError, match=r"s3://.*/tokens\.bin: .* in the cache; that copy"):
        once_more(read)
    assert len(times) == 2
    assert not times[0].exists()


def test_recheck_on_another_machine_finds_an_export_of_damaged_tokens(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    fields: dict[str, Any] = {"store": f"{object_store.url}/store", "name": "tiny"}
    dataset = declare(tmp_path, {"a.jsonl": ["one", "two", "three"]}, **fields)
    build(dataset)
    shard = graph_of(dataset).open_tokens("a.jsonl")
    path = shard.folder / "tokens.bin"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    trust_files(shard)  # as tokflow did before it compared what it had read
    fields |= {"exports": ["npy"], "packing": {"sequence_length": 4}}
    config = ("--config", write_yaml(tmp_path, **fields))
    assert run("run", *config).exit_code == 0
    monkeypatch.setenv("TOKFLOW_CACHE", str(tmp_path / "another"))
    assert "nothing to do" in run("run", *config).output

    found = run("run", *config, "--recheck")

    assert found.exit_code == 1
    assert "tiny/export npy: " in found.stderr
    assert "token 0" in found.stderr
    assert "1 output new" in run("run", *config).output
    assert run("run", *config, "--recheck").exit_code == 0

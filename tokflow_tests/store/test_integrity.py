"""A damaged file of a store is named by who reads it, and nothing is made from it."""

import threading
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tokflow.audit.trace import trace_tokens
from tokflow.errors import CorruptOutputError
from tokflow.exports import shuffled_documents
from tokflow.exports.stage import parts_of
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset
from tokflow.store import integrity
from tokflow.store.integrity import Reading
from tokflow.tokens.shard import TokenShard
from tokflow_tests.chats import CHATS, chat_dataset, write_chats
from tokflow_tests.disks import flip
from tokflow_tests.tiny import build, copy_of, declare

TEXTS = {"a.jsonl": ["one", "two", "three"]}
CUT = {"train": {"start": 0, "characters": 4}, "validation": {"start": 4}}
FIRST: dict[str, Any] = {
    "split": {"boundary": "character", "parts": CUT},
    "exports": ["bin", "parquet"],
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a dataset, built with a split and two exports."""
    folder = tmp_path_factory.mktemp("built")
    build(declare(folder, TEXTS, **FIRST))
    return folder


@pytest.fixture
def dataset(built: Path, tmp_path: Path) -> Dataset:
    """The dataset, built once and copied."""
    return declare(copy_of(built, tmp_path), **FIRST)


@pytest.fixture
def next_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes this process forget the files it made, as if it were another."""
    return lambda: monkeypatch.setattr(integrity, "arrived", {})


def file_of(dataset: Dataset, name: str) -> Path:
    """Return a file of the store by its name, but of no export."""
    [path] = (p for p in dataset.folder.rglob(name) if "exports" not in p.parts)
    return path


def manifests(dataset: Dataset) -> set[Path]:
    return set(dataset.folder.rglob("_tokflow/manifest.json"))


def damage(path: Path) -> str:
    """Return how the message for a file with a flipped bit begins."""
    return f"{path}: expected sha256 "


@pytest.mark.parametrize(
    ("name", "change", "stage"),
    [
        ("tokens.bin", {"exports": ["npy"]}, "export"),
        ("cut_tokens.bin", {"exports": ["npy"]}, "export"),
        ("documents.parquet", {"split": {"parts": CUT}}, "split"),
        ("spans.parquet", {"packing": {"sequence_length": 3}}, "sequences"),
        ("segments.parquet", {"exports": ["mds"]}, "export"),
    ],
)
def test_nothing_is_made_from_a_flipped_bit(
    name: str,
    change: dict[str, Any],
    stage: str,
    dataset: Dataset,
    next_run: Callable[[], None],
    tmp_path: Path,
):
    before = manifests(dataset)
    path = flip(file_of(dataset, name))
    next_run()

    built = build_dataset(declare(tmp_path / "copy", **{**FIRST, **change}))

    [failed] = built.failed
    assert failed.stage == stage
    assert str(failed.error).startswith(damage(path))
    assert str(failed.error).endswith(
        f"; remove the folder {path.parent} and run `tokflow run` again"
    )
    assert manifests(dataset) == before


def test_an_export_of_chats_is_not_made_from_a_flipped_loss_mask(
    next_run: Callable[[], None], tmp_path: Path
):
    build(chat_dataset(tmp_path, exports=["parquet"]))
    dataset = chat_dataset(tmp_path, exports=["arrow"])
    path = flip(file_of(dataset, "loss_mask.bin"))
    next_run()

    [failed] = build_dataset(dataset).failed

    assert str(failed.error).startswith(damage(path))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_no_tokens_are_made_with_a_flipped_tokenizer(
    name: str, next_run: Callable[[], None], tmp_path: Path
):
    dataset = chat_dataset(tmp_path)
    build(dataset)
    path = flip(file_of(dataset, name))
    write_chats(tmp_path / "raw/more.jsonl", CHATS)
    next_run()

    [failed] = build_dataset(dataset).failed

    assert (failed.stage, failed.name) == ("tokens", "more.jsonl")
    assert str(failed.error).startswith(damage(path))


def test_a_file_that_is_written_to_while_it_is_read_is_found(dataset: Dataset):
    shard = graph_of(dataset).open_tokens("a.jsonl")

    with pytest.raises(CorruptOutputError, match=r"tokens\.bin: expected sha256"), Reading():
        flip(shard.stored.file("tokens.bin"))


def test_a_damaged_file_that_a_whole_one_replaces_while_it_is_read_is_found(
    dataset: Dataset, next_run: Callable[[], None], tmp_path: Path
):
    shard = graph_of(dataset).open_tokens("a.jsonl")
    whole = tmp_path / "whole"
    whole.write_bytes((shard.folder / "tokens.bin").read_bytes())
    flip(shard.folder / "tokens.bin")
    next_run()

    with pytest.raises(CorruptOutputError, match="when reading began"), Reading():
        whole.replace(shard.stored.file("tokens.bin"))


def read_and_fail(shard: TokenShard, error: BaseException) -> None:
    with Reading():
        shard.tokens()
        raise error


def test_an_error_gives_way_to_the_damage_that_may_be_its_cause(
    dataset: Dataset, next_run: Callable[[], None]
):
    shard = graph_of(dataset).open_tokens("a.jsonl")
    flip(shard.folder / "tokens.bin")
    next_run()

    with pytest.raises(CorruptOutputError, match=r"tokens\.bin") as raised:
        read_and_fail(shard, ValueError("strange"))
    assert isinstance(raised.value.__cause__, ValueError)


def test_what_a_thread_reads_for_an_output_of_its_own_is_no_matter_of_others(dataset: Dataset):
    shard = graph_of(dataset).open_tokens("a.jsonl")

    def read() -> None:
        with Reading():
            shard.documents()

    with Reading():
        thread = Thread(target=read)
        thread.start()
        thread.join()
        (shard.folder / "documents.parquet").unlink()  # as segments are that were joined


def test_an_interrupted_block_leaves_no_thread(dataset: Dataset, next_run: Callable[[], None]):
    shard = graph_of(dataset).open_tokens("a.jsonl")
    next_run()
    before = threading.enumerate()

    with pytest.raises(KeyboardInterrupt):
        read_and_fail(shard, KeyboardInterrupt())
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(timeout=10)

    assert not any(thread.is_alive() for thread in left)


def test_an_error_of_what_reads_whole_files_stays_what_it_is(dataset: Dataset):
    with pytest.raises(ValueError, match="mine"):
        read_and_fail(graph_of(dataset).open_tokens("a.jsonl"), ValueError("mine"))


def test_a_table_that_was_read_without_being_compared_is_in_no_export(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    dataset = declare(tmp_path, TEXTS, exports=["bin"], shuffle={"documents": "dataset"})
    build(dataset)
    monkeypatch.setattr(shuffled_documents, "_tables", {})
    [part] = parts_of(graph_of(dataset).output("export", variant=dataset.exports[0].name))
    assert part.shuffled is not None
    read = part.shuffled.table()

    with Reading():
        compared = part.shuffled.table()
    with Reading():
        assert part.shuffled.table() is compared

    assert compared is not read


def test_what_this_process_made_is_not_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    read: list[str] = []
    monkeypatch.setattr(integrity, "broken_file", lambda folder, name, entry: read.append(name))

    build(declare(tmp_path, TEXTS, exports=["bin", "parquet"]))

    assert read == []


@pytest.mark.parametrize("name", ["_tokflow/index.parquet", "documents.parquet", "spans.parquet"])
def test_nothing_is_traced_through_a_flipped_table(
    name: str, dataset: Dataset, next_run: Callable[[], None]
):
    [path] = (of for of in dataset.folder.rglob(f"[0-9a-f]*/{name}") if "parquet" not in of.parts)
    flip(path)
    next_run()

    with pytest.raises(CorruptOutputError, match=damage(path)):
        trace_tokens(dataset.folder / "exports/bin/latest", part="train", start=0, stop=1)


def test_tokens_that_no_vocabulary_has_are_damage_to_who_traces_them(
    dataset: Dataset, next_run: Callable[[], None]
):
    path = file_of(dataset, "tokens.bin")
    path.write_bytes(b"\xff" * path.stat().st_size)
    next_run()

    with pytest.raises(CorruptOutputError, match=damage(path)):
        trace_tokens(dataset.folder / "exports/bin/latest", part="train", start=0, stop=1)

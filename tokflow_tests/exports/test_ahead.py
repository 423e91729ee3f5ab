import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from tokflow.documents import ranges
from tokflow.exports import token_files
from tokflow.exports.ahead import TokensAhead
from tokflow.pipeline import tasks
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset
from tokflow.store.atomic import machine
from tokflow.store.manifest import checksum
from tokflow_tests.exports.exporting import export
from tokflow_tests.tiny import build, declare

FILES = {"a.jsonl": ["ab"], "b.jsonl": ["c", "de"], "c.jsonl": ["f"]}
TOKENS = b"a\0b\0\0\1", b"c\0\0\1d\0e\0\0\1", b"f\0\0\1"


@contextmanager
def all_ahead(dataset: Dataset, *keys: str) -> Iterator[tuple[TokensAhead, list[Path]]]:
    """Yield the file of all tokens with those of `keys` added, and the files of all."""
    graph = graph_of(dataset)
    stored = {key: graph.tokens(key).open() for key in graph.partitions}
    with TokensAhead(graph.folder, list(stored)) as ahead:
        for key in keys:
            ahead.add(stored[key], key)
        yield ahead, [of.file("tokens.bin") for of in stored.values()]


def unfinished(dataset: Dataset) -> list[Path]:
    return [path for path in dataset.folder.iterdir() if path.name.endswith(".tmp")]


def test_tokens_that_are_made_in_any_order_are_copied_in_theirs(tmp_path: Path):
    build(dataset := declare(tmp_path, FILES))
    new = dataset.folder / "new"

    with all_ahead(dataset, "c.jsonl", "a.jsonl", "b.jsonl") as (ahead, files):
        entry = ahead.take(files, new)
        again = ahead.take(files, tmp_path / "second")

    assert new.read_bytes() == b"".join(TOKENS)
    assert entry == checksum(new)
    assert again is None
    assert unfinished(dataset) == []


def replaced(path: Path) -> None:
    path.unlink()
    path.write_bytes(TOKENS[1])


@pytest.mark.parametrize(
    ("keys", "change", "is_taken"),
    [
        (["a.jsonl", "b.jsonl"], None, False),
        (["b.jsonl", "c.jsonl"], None, False),
        ([], None, False),
        ([*FILES], replaced, False),
        ([*FILES], lambda path: os.link(path, path.parents[4] / "link"), True),
    ],
)
def test_what_is_not_all_tokens_or_was_replaced_since_is_not_taken_and_not_left(
    keys: list[str], change: Callable[[Path], None] | None, is_taken: bool, tmp_path: Path
):
    build(dataset := declare(tmp_path, FILES))

    with all_ahead(dataset, *keys) as (ahead, files):
        if change:
            change(files[1])
        taken = ahead.take(files, dataset.folder / "new")

    assert (taken is not None) == is_taken
    assert unfinished(dataset) == []


def test_damaged_tokens_are_not_copied_and_what_a_killed_run_left_is_removed(tmp_path: Path):
    build(dataset := declare(tmp_path, FILES))
    (dataset.folder / f".tokens.bin.{machine()}.{2**22 + 1}.01234567.tmp").touch()
    [path] = dataset.folder.glob("tokens/b.jsonl/*/tokens.bin")
    path.write_bytes(TOKENS[1][::-1])

    with all_ahead(dataset, *FILES) as (ahead, files):
        taken = ahead.take(files, dataset.folder / "new")

    assert taken is None
    assert unfinished(dataset) == []


def refuse(*_: object) -> NoReturn:
    raise AssertionError("written again")


@pytest.mark.parametrize("files", [FILES, {"a.jsonl": ["ab" * 60, "cd" * 60, "ef" * 60] * 3}])
def test_an_export_of_all_tokens_is_not_written_again(
    files: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ranges, "RANGE_BYTES", 200)  # the large file has segments
    folder, _ = export(declare(tmp_path / "written", files, exports=["bin"]))
    monkeypatch.setattr(tasks, "SMALL_BYTES", 0)
    monkeypatch.setattr(token_files, "write_numbers", refuse)
    dataset = declare(tmp_path / "ahead", files, exports=["bin"])

    built = build_dataset(dataset, jobs=1)

    assert not built.failed
    path = dataset.folder / "exports/bin/latest/train.bin"
    assert path.read_bytes() == (folder / "train.bin").read_bytes()
    assert unfinished(dataset) == []


@pytest.mark.parametrize(
    "how", [{"split": {"train": 0.5, "validation": 0.5}}, {"shuffle": {"documents": "file"}}]
)
def test_nothing_is_copied_ahead_for_other_exports(
    how: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tasks, "SMALL_BYTES", 0)
    monkeypatch.setattr(TokensAhead, "add", refuse)

    assert not build_dataset(declare(tmp_path, FILES, exports=["bin"], **how), jobs=1).failed

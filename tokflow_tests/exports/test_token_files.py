"""Files of tokens: how they are cut, hashed, copied, and written ahead."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokflow.documents import ranges
from tokflow.errors import CorruptOutputError
from tokflow.exports import part_sequences, token_files
from tokflow.exports.growing_bin import TokensAhead
from tokflow.exports.options import equal_sizes, even_sizes
from tokflow.exports.token_files import (
    copy_file,
    even_sizes_by_documents,
    open_hashed,
    sizes_by_documents,
    take_hashed,
)
from tokflow.pipeline import tasks
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset
from tokflow.store.atomic import machine
from tokflow.store.manifest import checksum
from tokflow_tests.exports.exporting import export
from tokflow_tests.outputs import int64
from tokflow_tests.tiny import build, declare


def cut(runs: list[list[int]], sizes: list[int]) -> list[list[list[int]]]:
    arrays = iter([np.array(run, dtype=np.int64) for run in runs])
    return [[run.tolist() for run in taken] for taken in part_sequences.cut(arrays, sizes)]


def test_runs_are_cut_where_a_file_ends():
    assert cut([[1, 2, 3, 4, 5], [6, 7, 8, 9]], [3, 6]) == [[[1, 2, 3]], [[4, 5], [6, 7, 8, 9]]]
    assert cut([[1, 2], [3, 4]], [2, 1, 1]) == [[[1, 2]], [[3]], [[4]]]
    assert cut([[1, 2, 3]], [2, 5]) == [[[1, 2]], [[3]]]


@pytest.mark.parametrize(
    ("sizes", "total", "of", "expected"),
    [
        (equal_sizes, 10, 4, [4, 4, 2]),
        (equal_sizes, 8, 4, [4, 4]),
        (equal_sizes, 0, 4, []),
        (even_sizes, 10, 4, [3, 3, 2, 2]),
        (even_sizes, 3, 4, [1, 1, 1]),
        (even_sizes, 0, 4, []),
    ],
)
def test_files_are_full_but_for_the_last_or_as_equal_as_they_can_be(
    sizes: Callable[[int, int], list[int]], total: int, of: int, expected: list[int]
):
    assert sizes(total, of) == expected


def test_a_number_of_files_end_with_the_documents_nearest_to_equal_shares():
    tokens, documents = even_sizes_by_documents(int64(0, 3, 1, 0, 4, 4, 0), 3)

    assert tokens.tolist() == [4, 4, 4]
    assert documents.tolist() == [4, 1, 2]


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 12))
def test_a_number_of_files_hold_every_document_once_and_none_is_empty(
    lengths: list[int], num_files: int
):
    tokens, documents = even_sizes_by_documents(int64(*lengths), num_files)

    assert len(tokens) == min(num_files, sum(length > 0 for length in lengths))
    ends = np.cumsum(documents).tolist()
    assert [sum(lengths[start:end]) for start, end in pairwise([0, *ends])] == tokens.tolist()
    assert (tokens > 0).all()
    assert ends[-1:] == ([len(lengths)] if sum(lengths) else [])


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 12))
def test_files_hold_every_document_once_and_none_is_larger_than_it_must_be(
    lengths: list[int], tokens_per_file: int
):
    tokens, documents = sizes_by_documents(int64(*lengths), tokens_per_file)

    assert tokens.sum() == sum(lengths)
    assert documents.sum() == (len(lengths) if sum(lengths) else 0)
    assert (tokens > 0).all()
    first = 0
    for size, num in zip(tokens.tolist(), documents.tolist(), strict=True):
        mine = lengths[first : first + num]
        assert sum(mine) == size
        assert size <= tokens_per_file or sum(length > 0 for length in mine) == 1
        first += num
        if first < len(lengths):
            assert size + lengths[first] > tokens_per_file


def test_files_are_hashed_once_unless_they_are_written_to_again(tmp_path: Path):
    for name in ("kept", "changed", "gone"):
        with open_hashed(tmp_path / "in" / name) as file:
            file.write(b"abc")
    with (tmp_path / "in" / "changed").open("ab") as file:
        file.write(b"d")
    (tmp_path / "in" / "gone").unlink()
    with open_hashed(tmp_path / "in" / "empty") as file:
        pass

    assert take_hashed(tmp_path / "other") == {}
    assert take_hashed(tmp_path) == {
        "in/kept": checksum(tmp_path / "in" / "kept"),
        "in/empty": checksum(tmp_path / "in" / "empty"),
    }
    assert take_hashed(tmp_path) == {}


def kernel_copy(
    monkeypatch: pytest.MonkeyPatch, num_bytes: int, refused: int | None = None
) -> None:
    """Let the kernel copy so many bytes of each file, then say that it has ended, or refuse."""
    copy = os.copy_file_range

    def some(source: int, file: int, _: int) -> int:
        left = num_bytes - os.fstat(file).st_size
        if left == 0 and refused:
            raise OSError(refused, "refused")
        return copy(source, file, left) if left else 0

    monkeypatch.setattr(os, "copy_file_range", some)


@pytest.mark.parametrize("num_bytes", [0, 1000, 3000])
@pytest.mark.parametrize("refused", [None, errno.EXDEV, errno.EINVAL])
def test_a_copy_is_whole_however_much_of_it_the_kernel_makes(
    num_bytes: int, refused: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = tmp_path / "source"
    source.write_bytes(b"abc" * 1000)
    entry = checksum(source)
    kernel_copy(monkeypatch, num_bytes, refused)

    copy_file(source, entry, tmp_path / "new")

    assert (tmp_path / "new").read_bytes() == source.read_bytes()
    assert take_hashed(tmp_path) == {"new": entry}


@pytest.mark.parametrize("content", [b"", b"ab", b"abcd"])
def test_a_copy_of_another_size_than_its_source_should_have_is_an_error(
    content: bytes, tmp_path: Path
):
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    entry = checksum(source)
    source.write_bytes(content)

    with pytest.raises(CorruptOutputError, match=f"3 bytes.* found {len(content)}") as failed:
        copy_file(source, entry, tmp_path / "new")

    assert failed.value.where == str(source)
    assert take_hashed(tmp_path) == {}


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

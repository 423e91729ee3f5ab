"""Tokens of many files are read as one, without going through all files for each span."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tokflow.tokens import token_source
from tokflow.tokens.token_source import TokenSource
from tokflow_tests.outputs import int64


class Watched(np.ndarray):
    """A file that counts how often it is looked at."""

    looks = 0

    def __len__(self) -> int:
        Watched.looks += 1
        return super().__len__()

    def __getitem__(self, key: Any) -> Any:
        Watched.looks += 1
        return np.asarray(self)[key]


@pytest.fixture
def hundred() -> TokenSource:
    """Files of 10 tokens each: 0 to 9, 10 to 19, ..."""
    whole: npt.NDArray[Any] = np.arange(1000)
    return TokenSource(tuple(file.view(Watched) for file in np.split(whole, 100)))


def test_a_span_looks_only_at_the_files_that_have_it(hundred: TokenSource):
    Watched.looks = 0

    assert len(hundred) == 1000
    assert hundred.read(507, 512).tolist() == [507, 508, 509, 510, 511]
    assert hundred.take(int64(13, 990), int64(2, 10)).tolist() == [13, 14, *range(990, 1000)]
    assert Watched.looks == 2 + 2


def test_tokens_of_one_file_are_not_copied():
    files = tuple(np.arange(10) for _ in range(3))
    source = TokenSource((*files, np.arange(0)))

    assert np.shares_memory(source.read(20, 99), files[2])
    assert np.shares_memory(source.take(int64(11, 13), int64(2, 7)), files[1])


@pytest.mark.parametrize("runs_at_once", [3, 2**12])
def test_many_short_runs_in_any_order_are_read_as_few(
    runs_at_once: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(token_source, "RUNS_AT_ONCE", runs_at_once)
    choose = np.random.default_rng(0)
    whole = np.arange(1000)
    source = TokenSource(tuple(np.split(whole, [0, 10, 11, 11, 400, 1000])))  # three of no tokens
    starts, lengths = choose.integers(0, 990, 200), choose.integers(0, 11, 200)

    taken = source.take(starts, lengths)

    pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
    assert taken.tolist() == [
        token for start, size in pairs for token in range(start, start + size)
    ]

"""Cut what a part yields into files of a given size."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt


class Cuttable(Protocol):
    """What has a length and can be cut: an array, or rows."""

    def __len__(self) -> int: ...

    def __getitem__(self, values: slice, /) -> Any: ...


Run = TypeVar("Run", bound=Cuttable)


def cut_runs(runs: Iterator[Run], sizes: Iterable[int]) -> Iterator[Iterator[Run]]:
    """Yield for each size the runs that hold so many values, in order; nothing is copied.

    What was yielded before must have been taken to its end. A size that is past the end of
    `runs` yields what is left.

    For runs of 5 and 4 values and the sizes 3, 6: [3], [2, 4].
    """
    rest: Run | None = None

    def taken(size: int) -> Iterator[Run]:
        nonlocal rest
        while size:
            run = next(runs, None) if rest is None else rest
            if run is None:
                return
            rest = run[size:] if len(run) > size else None
            size -= min(size, len(run))
            yield run if rest is None else run[: len(run) - len(rest)]

    for size in sizes:
        yield taken(size)


def equal_sizes(total: int, per_file: int) -> list[int]:
    """Return the sizes of the files that `total` values fill, `per_file` each; the last has the
    rest. Empty where there is nothing."""
    full, rest = divmod(total, per_file)
    return [per_file] * full + ([rest] if rest else [])


def rows_within(limit: int, row_size: int) -> int:
    """Return how many rows of `row_size` fit into `limit`; one at least."""
    return max(1, limit // row_size)


def blocks_of(
    runs: Iterator[npt.NDArray[Any]], total: int, size: int
) -> Iterator[npt.NDArray[Any]]:
    """Yield what the runs hold, `size` of `total` values each time, however long the runs are."""
    for taken in cut_runs(runs, equal_sizes(total, size)):
        if block := list(taken):
            yield np.concatenate(block)


def sizes_by_documents(
    num_tokens: npt.NDArray[np.int64], tokens_per_file: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the tokens and the documents of each file, if documents stay whole.

    Documents follow each other into a file until the next would make it larger than
    `tokens_per_file`; one that is larger itself has a file of its own. Documents of no tokens
    go with the one before them. Both arrays have the shape (num_files,), int64; no file is empty.
    """
    ends = np.cumsum(num_tokens)
    firsts = [0] if len(ends) and ends[-1] else []
    while firsts:
        before = int(ends[firsts[-1] - 1]) if firsts[-1] else 0
        stop = int(np.searchsorted(ends, before + tokens_per_file, side="right"))
        if stop <= firsts[-1] or ends[stop - 1] == before:  # its first document is too large
            stop = int(np.searchsorted(ends, before, side="right")) + 1
            stop = int(np.searchsorted(ends, ends[stop - 1], side="right"))
        if stop >= len(ends) or ends[stop - 1] == ends[-1]:
            break
        firsts.append(stop)
    edges = np.array([*firsts, len(ends)] if firsts else [], dtype=np.int64)
    tokens_before = np.concatenate([np.zeros(1, dtype=np.int64), ends])[edges]
    return np.diff(tokens_before), np.diff(edges)

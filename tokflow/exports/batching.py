"""Arrays and sequences cut and joined to the sizes that are asked for."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt


class Cuttable(Protocol):
    """An array, or sequences: anything that has a length and can be sliced."""

    def __len__(self) -> int: ...

    def __getitem__(self, values: slice, /) -> Any: ...


C = TypeVar("C", bound=Cuttable)


def cut(arrays: Iterator[C], sizes: Iterable[int]) -> Iterator[Iterator[C]]:
    """Yield for each size the arrays that hold so many values, in order; nothing is copied.

    What was yielded before must have been taken to its end. A size that is past the end of
    `arrays` yields what is left.

    For arrays of 5 and 4 values and the sizes 3, 6: [3], [2, 4].
    """
    rest: C | None = None

    def taken(size: int) -> Iterator[C]:
        nonlocal rest
        while size:
            array = next(arrays, None) if rest is None else rest
            if array is None:
                return
            rest = array[size:] if len(array) > size else None
            size -= min(size, len(array))
            yield array if rest is None else array[: len(array) - len(rest)]

    for size in sizes:
        yield taken(size)


def batches_of(
    arrays: Iterator[npt.NDArray[Any]], total: int, size: int
) -> Iterator[npt.NDArray[Any]]:
    """Yield what the arrays hold, `size` of `total` values each time, however long they are."""
    for taken in cut(arrays, equal_sizes(total, size)):
        if batch := list(taken):
            yield np.concatenate(batch)


def equal_sizes(total: int, per_file: int) -> list[int]:
    """Return the sizes of the files that `total` values fill, `per_file` each; the last has the
    rest. Empty where there is nothing."""
    full, rest = divmod(total, per_file)
    return [per_file] * full + ([rest] if rest else [])


def even_sizes(total: int, num: int) -> list[int]:
    """Return the sizes of `num` files that `total` values fill, none of which has two more than
    another; fewer files where there are fewer values.

    Of 10 values in 4 files: 3, 3, 2, 2.
    """
    size, more = divmod(total, max(1, min(num, total)))
    return [size + 1] * more + [size] * (min(num, total) - more)


def offsets_of(lengths: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return where each document begins, and the last ends; (num_documents + 1,)."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])

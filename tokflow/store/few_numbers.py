"""Numbers of a large file at a URL, of which few are read."""

from pathlib import Path
from typing import Any, TypeGuard, cast

import numpy as np
import numpy.typing as npt

from tokflow.store.arrow import map_numbers
from tokflow.store.remote.ranges import is_far, read_ranges, size_of

NEAR_BYTES = 2**16
"""Numbers that are so near to each other are read at one go."""


def few_numbers(
    path: Path,
    dtype: npt.DTypeLike,
    *,
    first_byte: int = 0,
    shape: tuple[int, ...] | None = None,
) -> npt.NDArray[Any]:
    """Return the numbers of a file from a byte on, memory-mapped; of a large one at a URL that is
    not here a `FewNumbers`, which has no more of an array than its docstring says."""
    if is_far(path):
        dtype = np.dtype(dtype)
        shape = shape or ((size_of(path) - first_byte) // dtype.itemsize,)
        return cast(npt.NDArray[Any], FewNumbers(path, dtype, first_byte, shape))
    num = -1 if shape is None else int(np.prod(shape))
    values = map_numbers(path, dtype, first_byte=first_byte, num=num)
    return values if shape is None else values.reshape(shape)


class FewNumbers:
    """Numbers, or rows of numbers, that come when they are looked at: `numbers[7]`,
    `numbers[3:9]`, `numbers[[3, 1, 2]]` and `numbers.runs`. All come where much was looked at."""

    def __init__(
        self, path: Path, dtype: np.dtype[Any], first_byte: int, shape: tuple[int, ...]
    ) -> None:
        self.path, self.dtype, self.shape = path, dtype, shape
        self._first_byte = first_byte
        self._item_bytes = dtype.itemsize * int(np.prod(shape[1:]))
        self._whole: npt.NDArray[Any] | None = None

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """Dimensions."""
        return len(self.shape)

    @property
    def is_mapped(self) -> bool:
        """True from when the whole file was found to be here, which is memory-mapped then."""
        return self._whole is not None

    def __getitem__(self, chosen: Any) -> Any:
        """Return a number, those of a slice, or those of a list of numbers from 0 on."""
        if (whole := self._found()) is not None:
            return whole[chosen]
        if isinstance(chosen, slice):
            start, stop, step = chosen.indices(len(self))
            if step != 1:
                return self[np.arange(start, stop, step)]
            return self._between([start], [max(start, stop)])
        if np.ndim(chosen) == 0:
            return self[[range(len(self))[chosen]]][0]
        return self.runs(np.asarray(chosen, dtype=np.int64), 1)[..., 0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self[:], dtype=dtype, copy=copy)

    def runs(self, starts: npt.NDArray[np.int64], num: int) -> npt.NDArray[Any]:
        """Return `num` numbers from each of these on, in the last dimension."""
        if (values := self._found()) is None and len(starts):
            lows, highs = _joined(np.sort(starts), num, NEAR_BYTES // self._item_bytes)
            values, sizes = self._between(lows.tolist(), highs.tolist()), highs - lows
            of = np.searchsorted(lows, starts, side="right") - 1
            starts = starts - lows[of] + (np.cumsum(sizes) - sizes)[of]
        elif values is None:
            values = np.zeros((num, *self.shape[1:]), self.dtype)
        windows: npt.NDArray[Any] = np.lib.stride_tricks.sliding_window_view(values, num, axis=0)
        return windows[starts]

    def _between(self, starts: list[int], stops: list[int]) -> npt.NDArray[Any]:
        """Return the numbers of ranges, end to end."""
        edges = self._first_byte + np.array([starts, stops]).T * self._item_bytes
        data = b"".join(read_ranges(self.path, [(start, stop) for start, stop in edges.tolist()]))
        return np.frombuffer(data, self.dtype).reshape(-1, *self.shape[1:])

    def _found(self) -> npt.NDArray[Any] | None:
        """Return the map of the file once all of it is here."""
        if self._whole is None and self.path.exists():
            num = int(np.prod(self.shape))
            whole = map_numbers(self.path, self.dtype, first_byte=self._first_byte, num=num)
            self._whole = whole.reshape(self.shape)
        return self._whole


def is_few(values: Any) -> TypeGuard[FewNumbers]:
    """Return whether numbers come when they are looked at."""
    return isinstance(values, FewNumbers)


def _joined(
    starts: npt.NDArray[np.int64], num: int, near: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where runs of `num` numbers begin and end, those that are `near` each other as one."""
    is_first = np.diff(starts, prepend=starts[0] - num - near - 1) > num + near
    firsts = np.flatnonzero(is_first)
    return starts[firsts], starts[np.append(firsts[1:], len(starts)) - 1] + num

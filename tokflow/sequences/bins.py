"""Bin packing: which documents share a sequence, a bin with room for its length of tokens.

Each function takes the lengths of documents, (num_documents,) int64, each from 1 to the room of
an empty bin, and returns the bin of each document, int64, counted from 0 without a gap.

`python -m benchmarks packing` on 10 million documents in sequences of 2,048 tokens, seconds of one
core (2.5 GHz, busy) for all of packing, and how full the sequences were:

    greedy      next_fit      5 s   85.5 %
    first_fit   first_fit    35 s   99.7 %
    best_fit    best_fit      8 s   99.999 %
    pool        pooled       13 s   99.995 %
"""

from bisect import bisect_left, insort
from collections import defaultdict
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

DOCUMENTS_AT_ONCE = 2**20
"""Documents whose numbers are Python's at one time, where a loop must look at each."""

NONE = 2**31 - 1
"""More than any bin."""


def next_fit(lengths: npt.NDArray[np.int64], room: int) -> npt.NDArray[np.int64]:
    """Put each document into the bin of the one before it or, if it is too long, into a new one."""
    ends = np.cumsum(lengths)
    # The document that would begin the next bin, if this one began a bin.
    following = np.searchsorted(ends, ends - lengths + room, side="right")
    firsts = []
    first = 0
    for start in range(0, len(lengths), DOCUMENTS_AT_ONCE):
        batch = following[start : start + DOCUMENTS_AT_ONCE].tolist()
        while first < start + len(batch):
            firsts.append(first)
            first = batch[first - start]
    is_first = np.zeros(len(lengths), dtype=np.int64)
    is_first[firsts] = 1
    return np.cumsum(is_first) - 1


def first_fit(lengths: npt.NDArray[np.int64], room: int) -> npt.NDArray[np.int64]:
    """Put each document, in order, into the first bin that has room for it.

    The bins with the same room are a heap, and numpy finds the least of those on top. Python looks
    at each document, which costs four times what best_fit does, for sequences that are less full.
    """
    found = np.empty(len(lengths), dtype=np.int64)
    first_with_room = np.full(room + 1, NONE, dtype=np.int32)
    with_room: defaultdict[int, list[int]] = defaultdict(list)
    rooms: list[int] = []
    for start in range(0, len(lengths), DOCUMENTS_AT_ONCE):
        for document, length in enumerate(lengths[start:][:DOCUMENTS_AT_ONCE].tolist(), start):
            first = int(np.minimum.reduce(first_with_room[length:]))
            if first == NONE:
                first = len(rooms)
                rooms.append(room)
            else:
                bins = with_room[rooms[first]]
                heappop(bins)
                first_with_room[rooms[first]] = bins[0] if bins else NONE
            found[document] = first
            rooms[first] -= length
            if left := rooms[first]:
                heappush(with_room[left], first)
                first_with_room[left] = with_room[left][0]
    return found


def best_fit(lengths: npt.NDArray[np.int64], room: int) -> npt.NDArray[np.int64]:
    """Put each document, the longest first, into the bin in which it leaves the least room.

    Documents of one length and bins with one room are handled together: what a length does to a
    room is done once, for all bins that have it, so that the loop is over pairs of length and
    room: for 10 million documents 4,000 in sequences of 2,048 tokens, 15,000 in those of 8,192.
    There are as many bins as by plain best-fit decreasing.
    """
    shortest = np.uint16 if room < 2**16 else np.int64  # of 16 bits, numpy sorts by radix
    order = np.argsort((room - lengths).astype(shortest), kind="stable")
    counts = np.bincount(lengths)
    bins = _RoomyBins(room)
    for length in np.flatnonzero(counts)[::-1].tolist():
        bins.put(length, int(counts[length]))
    found = np.empty(len(lengths), dtype=np.int64)
    found[order] = bins.bin_of_document
    return found


class _RoomyBins:
    """Bins with room left, grouped by it."""

    def __init__(self, room: int) -> None:
        self.bin_of_document: list[int] = []
        self._room = room
        self._num_bins = 0
        self._with_room: dict[int, list[int]] = {}
        self._rooms: list[int] = []
        """The keys of `_with_room` in order."""

    def put(self, length: int, num: int) -> None:
        """Put so many documents of one length into the bins they fit into best.

        A bin that takes one of them is then the best for the next, as long as it has the room:
        so each takes as many as it can, one bin after another.
        """
        while num:
            at = bisect_left(self._rooms, length)
            if at == len(self._rooms):
                num_new = -(-num // (self._room // length))
                new = list(range(self._num_bins, self._num_bins + num_new))
                self._num_bins += num_new
                num = self._fill(new, self._room, length, num)
                continue
            room = self._rooms[at]
            bins = self._with_room[room]
            num_taken = -(-num // (room // length))
            if num_taken >= len(bins):
                taken = bins
                del self._with_room[room], self._rooms[at]
            else:
                taken = bins[-num_taken:]
                del bins[-num_taken:]
            num = self._fill(taken, room, length, num)

    def _fill(self, bins: list[int], room: int, length: int, num: int) -> int:
        """Put as many documents as possible into each bin; return how many are left over."""
        each = room // length
        full, rest = bins[: num // each], bins[num // each :]
        if each == 1:
            self.bin_of_document += full
        else:
            self.bin_of_document += [bin_ for bin_ in full for _ in range(each)]
        self._add(full, room - each * length)
        num -= len(full) * each
        if rest:  # fewer documents than this bin has room for
            self.bin_of_document += rest * num
            self._add(rest, room - num * length)
            num = 0
        return num

    def _add(self, bins: list[int], room: int) -> None:
        if not bins or not room:
            return
        if room in self._with_room:
            self._with_room[room] += bins
        else:
            self._with_room[room] = bins
            insort(self._rooms, room)


def pooled(lengths: npt.NDArray[np.int64], room: int, pool_size: int) -> npt.NDArray[np.int64]:
    """Put `pool_size` documents at a time into bins, each of a pool where it leaves the least room.

    The least filled bin of a pool is emptied, and its documents are packed with the next pool.
    """
    found = np.empty(len(lengths), dtype=np.int64)
    kept = np.zeros(0, dtype=np.int64)
    num_bins = 0
    for start in range(0, len(lengths), pool_size):
        pool = np.concatenate([kept, np.arange(start, min(start + pool_size, len(lengths)))])
        bins = best_fit(lengths[pool], room)
        last = int(bins.max())
        open_bin = least_filled(bins, lengths[pool], room)
        if open_bin is not None:  # change places with the last bin
            bins = np.select([bins == open_bin, bins == last], [last, open_bin], bins)
        kept = pool[bins == last] if open_bin is not None else pool[:0]
        found[pool] = num_bins + bins
        num_bins += last if len(kept) else last + 1
    found[kept] = num_bins
    return found


def least_filled(
    bins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], room: int
) -> int | None:
    """Return the bin with the most room, the last of several; None where all are full."""
    fill = np.bincount(bins, weights=lengths)[::-1]
    if len(fill) == 0 or fill.min() == room:
        return None
    return len(fill) - 1 - int(np.argmin(fill))


def last_bin(bins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], room: int) -> int | None:
    """Return the bin of the last document; None where it is full."""
    is_open = len(bins) > 0 and lengths[bins == bins[-1]].sum() < room
    return int(bins[-1]) if is_open else None

"""The portions of a part, each read when it is needed; those used last are kept."""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property

import numpy as np

from tokflow.exports.format import Arrays, Portion
from tokflow.loaders.samples import Numbers, StoredFile, fetch
from tokflow.pools.cores import renew_in_forks

KEPT_BYTES = 2**28
"""Decoded fields that a source keeps."""

MAX_MAPPED = 10_000
"""Memory-mapped portions that a source keeps: a process has some 65,000 maps, and a portion some
files."""


LOOK_SECONDS = 1
"""Seconds from one look for files that are gone to the next; it takes 20 ms for 10,000."""


class KeptPortions:
    """The portions of a part by their number. Those used last are kept: of what is decoded, the
    offsets of memory-mapped ones too, KEPT_BYTES; MAX_MAPPED in all; and in any case the last.

    Any thread may ask; who asks for a portion that another reads waits for it.
    """

    def __init__(self, portions: Sequence[Portion]) -> None:
        self._portions = portions
        self.edges: Numbers = np.zeros(len(portions) + 1, dtype=np.int64)
        """The position, or the row, at which each portion begins, and the end of the last."""
        np.cumsum([portion.num for portion in portions], out=self.edges[1:])
        self._keep_none()
        renew_in_forks(self, KeptPortions._keep_none)  # which would wait for its parent's threads

    def _keep_none(self) -> None:
        self._kept: OrderedDict[int, Future[Arrays]] = OrderedDict()
        self._costs: dict[int, int] = {}
        """Bytes by number, of portions that are read."""
        self._total = 0
        self._look_again = 0.0
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> Arrays:
        """Return the fields of a portion."""
        with self._lock:
            kept = self._kept.get(number)
            if is_new := kept is None:
                kept = self._kept[number] = Future()
            else:
                self._kept.move_to_end(number)
        if is_new:
            self._read(number, kept)
        return kept.result()

    def of(self, places: Numbers) -> Numbers:
        """Return the number of the portion that each position, or row, is in."""
        return np.searchsorted(self.edges, places, side="right") - 1

    @cached_property
    def is_remote(self) -> bool:
        """Whether files come from a URL when they are read."""
        return bool(self._portions) and self._portions[0].stored.store.is_cached

    def files_of(self, places: Numbers) -> Iterator[StoredFile]:
        """Yield the files of positions, or rows, that are in portions which are not kept."""
        numbers = np.unique(np.minimum(self.of(places), len(self._portions) - 1)).tolist()
        unread = [self._portions[number] for number in numbers if number not in self._kept]
        for name in dict.fromkeys(name for portion in unread for name in portion.files):
            yield unread[0].stored, name

    def fetch(self, places: Numbers) -> None:
        """Bring the files of positions, or rows, to this disk, several at once, where `[]` would
        bring one after another; does nothing where all are here."""
        if self.is_remote:
            fetch(self.files_of(places))

    def _read(self, number: int, kept: Future[Arrays]) -> None:
        try:
            portion = self._portions[number]
            fields = portion.read()
        except BaseException as error:
            with self._lock:
                del self._kept[number]
            kept.set_exception(error)
            return
        # Plain arrays over maps: their slices cost a fifth of a memmap's.
        kept.set_result({name: np.asarray(values) for name, values in fields.items()})
        is_mapped = portion.is_mapped
        decoded = [of for of in fields.values() if of.flags.owndata or not is_mapped]
        cost = KEPT_BYTES // MAX_MAPPED + sum(values.nbytes for values in decoded)
        with self._lock:
            self._costs[number], self._total = cost, self._total + cost
            if self.is_remote and is_mapped:
                self._forget_gone()
            while self._total > KEPT_BYTES and len(self._costs) > 1:
                self._forget(next(each for each in self._kept if each in self._costs))

    def _forget_gone(self) -> None:
        """Forget maps of files that the limit of the cache took away, so that the disk has their
        room again."""
        if time.monotonic() < self._look_again:
            return
        self._look_again = time.monotonic() + LOOK_SECONDS
        for number in list(self._costs):
            if not self._portions[number].path.exists():
                self._forget(number)

    def _forget(self, number: int) -> None:
        self._total -= self._costs.pop(number)
        del self._kept[number]

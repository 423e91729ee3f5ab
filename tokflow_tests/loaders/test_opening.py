import os
import threading
from pathlib import Path

import numpy as np
import pytest

from tokflow.errors import CorruptOutputError
from tokflow.exports.format import Arrays, Portion
from tokflow.loaders import opening
from tokflow.loaders.opening import KeptPortions
from tokflow_tests.outputs import make_manifest, stored
from tokflow_tests.pools.forked import forked

OUTPUT = stored(Path(), make_manifest())
"""Its file is not there, and nobody looks."""


class Portions:
    """Portions of 10 numbers each, and how often each was read."""

    def __init__(self, num: int, *, is_mapped: bool = False) -> None:
        self.num_read, self.is_mapped = [0] * num, is_mapped
        self.kept = KeptPortions(
            [
                Portion(OUTPUT, ("p",), 10, lambda number=number: self._load(number), is_mapped)
                for number in range(num)
            ]
        )

    def _load(self, number: int) -> Arrays:
        self.num_read[number] += 1
        values = np.arange(10, dtype=np.int64) + 10 * number
        return {"token_ids": values[:] if self.is_mapped else values}


def test_of_decoded_portions_those_used_last_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opening, "KEPT_BYTES", 2 * 80)
    portions = Portions(3)

    for number in (0, 1, 0, 2, 0, 1):
        assert portions.kept[number]["token_ids"][0] == 10 * number

    assert portions.num_read == [1, 2, 1]


def test_threads_that_ask_for_a_portion_at_once_wait_for_one_reading_of_it():
    is_asked = threading.Barrier(4)
    portions = Portions(1)

    def ask() -> None:
        is_asked.wait()
        found.append(portions.kept[0]["token_ids"])

    found: list[np.ndarray] = []
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert portions.num_read == [1]
    assert all(values is found[0] for values in found)


def test_a_process_forked_while_a_thread_reads_a_portion_reads_it_too():
    is_reading, may_end, parent = threading.Event(), threading.Event(), os.getpid()

    def load() -> Arrays:
        is_reading.set()
        assert os.getpid() != parent or may_end.wait(60)
        return {"token_ids": np.arange(10)}

    kept = KeptPortions([Portion(OUTPUT, ("p",), 10, load)])
    thread = threading.Thread(target=lambda: kept[0])
    thread.start()
    assert is_reading.wait(20)
    try:
        assert forked(lambda: len(kept[0]["token_ids"])) == 10
    finally:
        may_end.set()
        thread.join()


def test_a_portion_that_could_not_be_read_is_read_again_when_it_is_asked_for():
    loads = iter([{"token_ids": np.zeros(3)}, {"token_ids": np.zeros(10)}])
    kept = KeptPortions([Portion(OUTPUT, ("p",), 10, lambda: next(loads))])

    with pytest.raises(CorruptOutputError, match="expected 10 tokens in a portion, found 3"):
        kept[0]

    assert len(kept[0]["token_ids"]) == 10

import sys
from pathlib import Path

import pytest

from benchmarks import orders

EVENS_FIRST = """
import numpy as np
from benchmarks.peers.order_command import run

def evens_first(size, seed):
    return lambda places: np.concatenate([np.arange(seed, size, 2), np.arange(0, size, 2)])[places]

run({"evens first": evens_first})
"""


def of_module(monkeypatch: pytest.MonkeyPatch, module: Path) -> None:
    """Let the environment of any peer be this one, and its program that file."""
    monkeypatch.setattr(orders, "python", lambda peer: [sys.executable, module])
    monkeypatch.setenv("PYTHONPATH", str(Path(orders.__file__).parent.parent))


def test_orders_are_judged_by_their_numbers_whoever_computes_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "evens.py").write_text(EVENS_FIRST)
    of_module(monkeypatch, tmp_path / "evens.py")
    peer = orders.Contender(name="evens", numbers_at=orders.of_peer("evens", "evens first"))

    found = orders.measure_orders((*orders.WHOLE[:2], peer), 2_000, seeds=(1, 1))

    assert abs(found["tokflow"].worst.z) < 5
    assert found["evens"].shown["correlation"].value > 0.9
    [_, ours, numpys, evens] = orders.table(found)
    assert ours.endswith("passes")
    assert numpys.endswith("passes")
    assert not evens.endswith("passes")

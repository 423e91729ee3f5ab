import itertools
import subprocess
import sys

import pytest

from tokflow.pools import bounded as bounds
from tokflow.pools.bounded import OverBoundError, bounded


def never_end() -> None:
    for _ in itertools.count():
        try:
            pass
        except Exception:
            continue


def fill_memory() -> None:
    kept = []
    while len(kept) < 10_000:
        kept.append(bytes(range(256)) * 500)
        sum(range(10_000))  # some time, in which it is looked at


def test_a_block_that_never_ends_is_ended_and_says_why():
    with pytest.raises(OverBoundError, match="more than 1 seconds"), bounded(1):
        never_end()

    with bounded(1):  # nothing of it comes later
        assert sum(range(1000)) == 499_500


def test_a_block_whose_memory_runs_away_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounds, "MEMORY_BYTES", 50_000_000)

    with pytest.raises(OverBoundError, match="of memory"), bounded(60):
        fill_memory()


def test_an_error_of_the_block_is_raised_as_it_is():
    with pytest.raises(KeyError), bounded(60):
        {}["a"]


def test_an_interpreter_that_ended_a_block_goes_on_as_before():
    program = (
        "import cProfile; from tokflow_tests.pools.test_bounded import *\n"
        "try:\n    with bounded(0.3): never_end()\nexcept OverBoundError: pass\n"
        "cProfile.Profile().runcall(lambda: None)"  # for ever, where an exception is looked for
    )

    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)

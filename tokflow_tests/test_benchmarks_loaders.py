"""The tables of loaders: what a run that goes on loses or repeats is found, whoever reads."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import loaders
from benchmarks.loader_resume import BEFORE, ROW_TOKENS, Outcome, Run, measure_resume
from benchmarks.programs import ROOT

FORGETFUL = """
import numpy as np
from benchmarks.loader_peers.command import run, saved

class Forgetful:
    '''Rows in order; its state counts batches.'''

    def __init__(self, request):
        self.request, self.num_batches = request, saved(request) or 0

    def __iter__(self):
        request = self.request
        while (start := self.num_batches * request.batch_size) < 9_600:
            self.num_batches += 1
            stop = start + request.batch_size
            numbers = np.arange(start, stop)[request.rank :: request.world_size]
            yield np.array([[*f"{number:08}".encode()] for number in numbers])

    def state(self):
        if self.request.variant == "refuses":
            raise ValueError("no state")
        return self.num_batches

run(resume={"forgetful": Forgetful, "refuses": Forgetful})
"""


def outcomes(folder: Path, variant: str, after: Mapping[str, Run]) -> dict[str, Outcome]:
    (folder / "forgetful.py").write_text(FORGETFUL)
    program = SimpleNamespace(
        variant=variant,
        has_workers=False,
        command=[sys.executable, folder / "forgetful.py"],
        environment=lambda place: {"PYTHONPATH": str(ROOT)},
    )
    return measure_resume(program, folder, after=after)


@pytest.mark.slow
def test_a_state_that_counts_batches_loses_rows_where_they_grow(tmp_path: Path):
    after = {"nothing": BEFORE, "4 ranks": Run(world_size=4), "batches of 48": Run(batch_size=48)}

    found = outcomes(tmp_path, "forgetful", after)

    assert found["epoch"] == Outcome(order="other")
    assert found["nothing"] == Outcome(order="same")
    assert found["4 ranks"] == Outcome(order="batches")
    assert found["batches of 48"] == Outcome(num_lost=102 * 16, order="batches")
    [_, row, *_] = loaders.resume_lines({"forgetful": found})
    assert row.split() == ["forgetful", "other", "whole", "batches", "-1,632", "+0", "-", "-"]


def test_what_a_loader_refuses_is_told_in_its_words(tmp_path: Path):
    found = outcomes(tmp_path, "refuses", {"nothing": BEFORE})

    assert found["epoch"].refused is None
    assert found["nothing"].refused == "ValueError: no state"


@pytest.mark.slow
def test_tokflow_gives_the_rows_of_its_exports_and_goes_on_with_other_ranks(tmp_path: Path):
    ids = loaders.make_ids(tmp_path, has_halves=False)
    asked = {"sequence_length": ROW_TOKENS, "windows": 1, "window_seconds": 0}

    speeds = [
        loaders.ask(loaders.own(name="", variant=variant), "speed", ids, **asked)
        for variant in ("bin", "parquet")
    ]
    program = loaders.own(name="", variant="parquet")
    found = measure_resume(program, ids, after={"others": Run(world_size=1, batch_size=48)})

    assert [len(speed["rows_per_second"]) for speed in speeds] == [1, 1]
    assert found["others"] == Outcome(order="same")

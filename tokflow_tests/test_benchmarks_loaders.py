"""The tables of loaders: what a run that goes on loses or repeats is found, whoever reads."""

from pathlib import Path

import pytest

from benchmarks import loaders
from benchmarks.loader_resume import ROW_TOKENS, Outcome, Run, measure_resume


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

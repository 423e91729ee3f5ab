"""The net itself: a few of its cases, and that it holds what it must."""

from collections import Counter
from pathlib import Path

import pytest

from tokflow import split
from tokflow_tests.fuzz.cases import make_case, tokenizer_of
from tokflow_tests.fuzz.check import Checker, DifferenceError
from tokflow_tests.fuzz.exports import FORMATS as RANDOM_FORMATS
from tokflow_tests.fuzz.packing import Run, pack
from tokflow_tests.fuzz.readers import READERS

SEEDS = [seed for seed in range(200) if tokenizer_of(seed) == "bytes"][:6]


def test_some_cases_are_as_the_model_has_them(tmp_path: Path):
    checker = Checker(tmp_path)

    tallies = [checker.run(make_case(seed, tmp_path)) for seed in SEEDS]

    assert sum(tally.tokens for tally in tallies) > 1_000
    assert sum(tally.traces for tally in tallies) > 5

"""The recipes of sequences and exports hold the fields of packing that can change a byte of them,
and no others."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tokflow.pipeline.output import Output
from tokflow_tests.outputs import content
from tokflow_tests.tiny import build, declare

TEXTS = ["abcdefghijk", "ab", "c", "", "defgh", "ij", "klmno", "p", "qrs", "uvw", "xyzabc"]

ALL = ("concat", "pool", "one_document")
BOTH, OF_EXPORT, NONE = ("sequences", "export"), ("export",), ()

CHANGES: list[tuple[tuple[str, ...], dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    (ALL, {}, {"sequence_length": 5}, BOTH),
    (ALL, {}, {"label_token": True}, BOTH),
    (ALL, {}, {"overlap": 1}, BOTH),
    (ALL, {}, {"overlong": "truncate"}, BOTH),
    (ALL, {}, {"overlong": "drop"}, BOTH),
    (ALL, {"overlong": "truncate"}, {"truncation_side": "left"}, BOTH),
    (ALL, {}, {"truncation_side": "left"}, NONE),
    (("concat", "pool"), {}, {"tail": "drop"}, OF_EXPORT),
    (("one_document",), {}, {"tail": "drop"}, NONE),
    (("concat",), {}, {"min_sample_length": 4}, OF_EXPORT),
    (("one_document",), {}, {"min_sample_length": 4}, BOTH),
    (("pool",), {}, {"pool_size": 2}, BOTH),
    (("concat", "one_document"), {}, {"pool_size": 2}, NONE),
    (ALL, {}, {"pad_id": 7}, OF_EXPORT),
    (ALL, {}, {"padding_side": "left"}, OF_EXPORT),
]
"""Strategies, the packing, a change of it, and the stages of which the output becomes another."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Output]]:
    """Return the outputs of a packing, given as JSON, by their stages."""
    folder = tmp_path_factory.mktemp("deciding")

    @cache
    def make(packing: str) -> dict[str, Output]:
        packed = {"packing": json.loads(packing), "exports": ["parquet"]}
        built = build(declare(folder, {"a.jsonl": TEXTS}, **packed))
        return {made.output.stage: made.output for made in built.made}

    return make


@pytest.mark.parametrize(("strategies", "packing", "change", "stages"), CHANGES, ids=str)
def test_what_is_packed_is_made_again_where_a_byte_changes_and_nowhere_else(
    strategies: tuple[str, ...],
    packing: dict[str, Any],
    change: dict[str, Any],
    stages: tuple[str, ...],
    made: Callable[[str], dict[str, Output]],
):
    for strategy in strategies:
        before = {"strategy": strategy, "sequence_length": 4, **packing}

        old, new = (made(json.dumps(of)) for of in (before, {**before, **change}))

        for stage in BOTH:
            is_same = stage not in stages
            is_recipe_same = old[stage].fingerprint == new[stage].fingerprint
            are_files_same = files_of(old[stage]) == files_of(new[stage])
            assert (is_recipe_same, are_files_same) == (is_same, is_same), (strategy, stage)


def files_of(output: Output) -> dict[str, bytes]:
    """Return the files of an output without what tells of the run."""
    files = content(output.folder)
    return {name: files[name] for name in output.manifest().files}

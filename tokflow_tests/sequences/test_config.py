"""The config of packing, whose parts may have fields of their own; its recipes hold the fields that
can change a byte, and no others."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tokflow.errors import ConfigError
from tokflow.pipeline.output import Output
from tokflow.sequences import PackingConfig, described, one_or_each
from tokflow_tests.outputs import content
from tokflow_tests.tiny import build, declare

PARTS = ("train", "validation")


def read(**fields: Any) -> PackingConfig:
    return PackingConfig.read(fields, where="packing")


def of(*lengths: int) -> PackingConfig:
    """Return a packing with these lengths of the parts."""
    parts = {name: {"sequence_length": n} for name, n in zip(PARTS, lengths, strict=True)}
    return read(parts=parts)


def test_equal_packings_have_one_recipe_however_they_are_declared():
    several = [
        of(8, 4),
        read(sequence_length=8, parts={"validation": {"sequence_length": 4}}),
        read(sequence_length=4, parts={"train": {"sequence_length": 8}}),
        read(sequence_length=1, parts=of(8, 4).parts),
    ]

    fields = [packing.for_parts(PARTS).fields_of_export() for packing in several]

    assert fields[0]["sequence_length"] == 8
    assert fields[0]["parts"] == {"validation": {"sequence_length": 4}}
    assert all(others == fields[0] for others in fields)
    assert PackingConfig(**fields[0]).for_parts(PARTS).fields_of_export() == fields[0]
    assert of(8, 8).for_parts(PARTS).fields_of_file() == read(sequence_length=8).fields_of_file()


def test_what_decides_nothing_of_a_part_is_in_no_recipe():
    packing = read(sequence_length=4, parts={"validation": {"pool_size": 7, "pad_id": 3}})

    assert "parts" not in packing.fields_of_file()
    assert packing.fields_of_export()["parts"] == {"validation": {"pad_id": 3}}
    pool = read(pool_size=7, parts={"validation": {"strategy": "pool"}}).for_parts(PARTS)
    assert PackingConfig(**pool.fields_of_file()).of_part("validation").pool_size == 7


def test_a_side_is_in_a_recipe_where_it_is_not_the_usual_one_or_not_that_of_all():
    left = {"padding_side": "left"}
    one = read(**left, parts={"validation": {"padding_side": "right"}})
    other = read(parts={"validation": left})

    fields = [packing.for_parts(PARTS).fields_of_export() for packing in (one, other, read())]

    assert [of.get("padding_side") for of in fields] == ["left", None, None]
    assert [of.get("parts") for of in fields[:2]] == [
        {"validation": {"padding_side": "right"}},
        {"validation": left},
    ]
    assert not {"padding_side", "truncation_side"} & {*fields[2], *one.fields_of_file()}
    for packing, of in zip((one, other), fields, strict=False):
        again = PackingConfig(**of)
        assert [again.of_part(name) for name in PARTS] == [packing.of_part(n) for n in PARTS]


def test_a_recipe_gives_the_packing_back_though_fields_that_decide_nothing_are_not_in_it():
    of_all = {"strategy": "best_fit", "overlong": "truncate", "truncation_side": "left"}
    other = {"strategy": "concat", "sequence_length": 4, "min_sample_length": 2}
    other |= {"overlong": "split", "truncation_side": "right"}
    packing = read(**of_all, sequence_length=8, min_sample_length=5, parts={"validation": other})

    fields = packing.for_parts(PARTS).fields_of_file()

    assert PackingConfig(**fields).fields_of_file() == fields
    assert fields["parts"]["validation"]["min_sample_length"] == 1


def test_other_fields_hold_for_every_part_that_they_do_not_name():
    packing = read(overlap=1, parts={"train": {"sequence_length": 8, "pad_id": 5}})

    changed = packing.changed({"sequence_length": 6, "parts": {"validation": {"overlap": 2}}})

    assert packing.of_part("train") == read(overlap=1, sequence_length=8, pad_id=5)
    assert packing.of_part("validation") == read(overlap=1)
    train, validation = (changed.of_part(name) for name in PARTS)
    assert (train.sequence_length, train.overlap, train.pad_id) == (6, 1, 5)
    assert (validation.sequence_length, validation.overlap, validation.pad_id) == (6, 2, None)


@pytest.mark.parametrize(
    ("fields", "where", "found"),
    [
        ({"parts": {"train": {"sequence_lenght": 4}}}, "parts.train", "'sequence_lenght'"),
        ({"parts": {"train": {"overlap": 1024}}}, "parts.train.overlap", "1024"),
        ({"parts": {"train": {"sequence_length": "4"}}}, "parts.train.sequence_length", "'4'"),
        ({"parts": {"train": {"parts": {}}}}, "parts.train", "'parts'"),
        ({"parts": {"train": 4}}, "parts.train", "4"),
        ({"parts": 4}, "parts", "4"),
        ({"parts": {"valid": {}}}, "parts", "'valid'"),
        ({"sequence_length": 0}, "sequence_length", "0"),
        ({"sequence_length": 4, "overlap": 4}, "overlap", "4"),
        ({"overlap": -1}, "overlap", "-1"),
        ({"overlap": 1, "strategy": "greedy", "overlong": "drop"}, "overlap", "1"),
        ({"min_sample_length": 1025}, "min_sample_length", "1025"),
        ({"pool_size": 0}, "pool_size", "0"),
        ({"pad_id": 2**31}, "pad_id", "2147483648"),
        ({"pad_id": -1}, "pad_id", "-1"),
    ],
)
def test_what_makes_no_sense_is_refused_and_said_of_its_part(
    fields: dict[str, Any], where: str, found: str
):
    for make in (read, lambda **fields: PackingConfig().changed(fields)):
        with pytest.raises(ConfigError) as raised:
            make(**fields).for_parts(PARTS)

        assert raised.value.where.removeprefix("packing").lstrip(".: ") == where
        assert raised.value.found == found


def test_one_value_stands_for_parts_that_have_it():
    assert one_or_each({"train": 512, "validation": 512}) == 512
    assert described(one_or_each({"train": 1536, "test": 512})) == "1,536 of train and 512 of test"


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

"""The config of packing, whose parts may have fields of their own."""

from typing import Any

import pytest

from tokflow.errors import ConfigError
from tokflow.sequences.config import PackingConfig, described, one_or_each

PARTS = ("train", "validation")


def read(**fields: Any) -> PackingConfig:
    return PackingConfig.read(fields, where="packing")


def of(*lengths: int) -> PackingConfig:
    """Return a packing with these lengths of the parts."""
    parts = {name: {"sequence_length": n} for name, n in zip(PARTS, lengths, strict=True)}
    return read(parts=parts)


def test_a_part_has_its_own_fields_and_else_those_of_all():
    packing = read(strategy="best_fit", pad_id=3, parts={"train": {"sequence_length": 8}})

    assert packing.of_part("train") == read(strategy="best_fit", pad_id=3, sequence_length=8)
    assert packing.of_part("validation") == read(strategy="best_fit", pad_id=3)


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
    packing = read(
        **of_all,
        sequence_length=8,
        min_sample_length=5,
        parts={
            "validation": {
                "strategy": "concat",
                "sequence_length": 4,
                "min_sample_length": 2,
                "overlong": "split",
                "truncation_side": "right",
            }
        },
    )

    fields = packing.for_parts(PARTS).fields_of_file()

    assert PackingConfig(**fields).fields_of_file() == fields
    assert fields["parts"]["validation"]["min_sample_length"] == 1


def test_other_fields_hold_for_every_part_that_they_do_not_name():
    packing = read(overlap=1, parts={"train": {"sequence_length": 8, "pad_id": 5}})

    changed = packing.changed({"sequence_length": 6, "parts": {"validation": {"overlap": 2}}})

    train, validation = (changed.of_part(name) for name in PARTS)
    assert (train.sequence_length, train.overlap, train.pad_id) == (6, 1, 5)
    assert (validation.sequence_length, validation.overlap, validation.pad_id) == (6, 2, None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"parts": {"train": {"sequence_lenght": 4}}},
            r"packing: parts.train: expected one of the keys strategy, .*did you mean 'sequence_le",
        ),
        ({"parts": {"train": {"overlap": 1024}}}, r"packing: parts.train.overlap: expected 0 to 1"),
        ({"parts": {"train": {"sequence_length": "4"}}}, r"parts.train.sequence_length: expected"),
        ({"parts": {"train": {"parts": {}}}}, r"packing: parts.train: .* found 'parts'; remove it"),
        ({"parts": {"train": 4}}, r"packing: parts.train: expected a mapping, found 4; write keys"),
        ({"parts": 4}, r"packing: parts: expected a mapping, found 4"),
    ],
)
def test_what_is_wrong_is_said_of_its_part(fields: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        read(**fields)
    with pytest.raises(ConfigError, match=message.removeprefix("packing: ")):
        PackingConfig().changed(fields)


def test_a_part_that_the_split_has_not_is_refused():
    with pytest.raises(ConfigError, match=r"parts: .*found 'valid'; did you mean 'validation'"):
        read(parts={"valid": {}}).for_parts(PARTS)


def test_one_value_stands_for_parts_that_have_it():
    assert one_or_each({"train": 512, "validation": 512}) == 512
    assert described(one_or_each({"train": 1536, "test": 512})) == "1,536 of train and 512 of test"

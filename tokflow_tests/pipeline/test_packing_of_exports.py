"""Exports that are packed otherwise than the dataset, side by side with those that are not."""

from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.trace import sequence_range, trace_tokens
from tokflow.audit.verify import verify_path
from tokflow.errors import ConfigError
from tokflow.exports.reading import open_export
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.gc import find_garbage
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.results import BuildResult
from tokflow.sequences import PackingConfig, Packings
from tokflow_tests.outputs import problems_of
from tokflow_tests.tiny import build, declare, write_raw

FILES = {"a.jsonl": ["abcdefgh", "", "ijk"], "b.jsonl": ["lm", "nopqrstuvwxyz", "0123"]}
SHORT = {"format": "parquet", "name": "short", "packing": {"sequence_length": 3}}


def declared(folder: Path, *exports: Any, **packing: Any) -> Dataset:
    packing = {"sequence_length": 5, **packing}
    return declare(folder, {}, packing=packing, exports=[*exports])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_raw(tmp_path, FILES)
    return tmp_path


def new(built: BuildResult) -> list[tuple[str, str]]:
    outputs = [made.output for made in built.made if made.is_new]
    return [(of.stage, of.label) for of in outputs if of.stage != "tokenizer"]


def test_another_packing_remakes_nothing_and_equal_ones_share_their_sequences(folder: Path):
    build(declared(folder, "parquet"))
    same = {"format": "jsonl", "packing": {"sequence_length": 3, "tail": "drop"}}
    equal = {"format": "pickle", "packing": {"sequence_length": 5}}

    added = new(build(declared(folder, "parquet", SHORT, same, equal)))

    assert added == [
        ("sequences", "a.jsonl (short)"),
        ("sequences", "b.jsonl (short)"),
        ("export", "short"),
        ("export", "jsonl"),
        ("export", "pickle"),
    ]
    assert new(build(declared(folder, "parquet", SHORT, same, equal, pad_id=7))) == [
        ("export", name) for name in ("parquet", "short", "jsonl", "pickle")
    ]


def test_fields_of_an_export_hold_for_all_parts_and_those_of_its_parts_for_one(folder: Path):
    split = {"parts": {"train": {"documents": 2}, "validation": {"start": 2, "documents": 9}}}
    packing = {"parts": {"train": {"sequence_length": 6}, "validation": {"sequence_length": 4}}}
    exports = [
        {"format": "jsonl", "name": name, "packing": of}
        for name, of in {
            "own": {},
            "all": {"sequence_length": 3},
            "one": {"parts": {"validation": {"sequence_length": 2}}},
        }.items()
    ]

    built = build(declare(folder, {}, split=split, packing=packing, exports=exports))

    lengths = {
        name: [
            open_export(built.export(name).folder).of_part(part).sequence_length
            for part in split["parts"]
        ]
        for name in ("own", "all", "one")
    }
    assert lengths == {"own": [6, 4], "all": [3, 3], "one": [6, 2]}


def test_all_that_audits_follows_the_packing_of_each_export(folder: Path):
    dataset = declared(folder, "parquet", SHORT)
    path = build(dataset).export("short").folder

    assert problems_of(dataset) == []
    assert [of.problems for of in verify_path(dataset.folder) if of.problems] == []
    assert find_garbage(dataset, keep=1) == {}
    origins = trace_tokens(
        path, part="train", start=(span := sequence_range(path, "train", 1))[0], stop=span[1]
    )
    assert [origin.text for origin in origins] == ["def"]


def test_a_plan_says_why_each_packing_is_to_be_made(folder: Path):
    dataset = declared(folder, "parquet")
    build(dataset)

    def reasons(dataset: Dataset) -> dict[str, str]:
        return {f"{of.stage} {of.output.label}": of.reason for of in make_plan(dataset).missing}

    assert reasons(declared(folder, "parquet", SHORT)) == {
        "sequences a.jsonl (short)": "missing",
        "sequences b.jsonl (short)": "missing",
        "export short": "missing",
    }
    build(declared(folder, "parquet", SHORT))
    longer = {**SHORT, "packing": {"sequence_length": 4}}
    assert reasons(declared(folder, "parquet", longer)) == {
        "sequences a.jsonl (short)": "config changed (sequence_length: 3 to 4)",
        "sequences b.jsonl (short)": "config changed (sequence_length: 3 to 4)",
        "export short": "config changed (packing.sequence_length: 3 to 4; a.jsonl, b.jsonl)",
    }


def test_a_copy_of_a_dataset_with_another_packing_has_that(folder: Path):
    dataset = declare(folder)

    packings = dataset.of(Packings)
    copied = dataset.model_copy(update={"packing": PackingConfig(sequence_length=99)})

    assert (packings[""].sequence_length, copied.of(Packings)[""].sequence_length) == (4, 99)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"format": "bin", "packing": {"sequence_length": 3}},
            r"exports\[0\].packing: expected none, for nothing is packed in a stream, found .*bin",
        ),
        (
            {"format": "npy", "packing": {}},
            r"exports\[0\].packing: expected none, for nothing is packed in a stream",
        ),
        (
            {"format": "parquet", "packing": {"sequence_lenght": 3}},
            r"exports: parquet: packing: expected .*did you mean 'sequence_length'",
        ),
        (
            {"format": "parquet", "packing": {"overlap": 5}},
            r"exports: parquet: packing.overlap: expected 0 to 4, less than sequence_length",
        ),
        (
            {"format": "parquet", "packing": {"parts": {"valid": {}}}},
            r"exports: parquet: packing.parts: expected one of the keys train, found 'valid'",
        ),
        ({"format": "parquet", "packing": 5}, r"exports\[0\].packing: expected a mapping, found 5"),
        (
            {"format": "mds", "shard_size": 400, "packing": {"sequence_length": 1000}},
            r"exports: mds: shard_size: expected at least 4,193",
        ),
    ],
)
def test_a_packing_that_cannot_be_is_refused_by_the_export_s_name(
    entry: dict[str, Any], message: str, folder: Path
):
    with pytest.raises(ConfigError, match=message):
        declared(folder, entry)

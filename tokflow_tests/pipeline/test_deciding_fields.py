"""What cannot change a byte of an output does not make it again."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.verify import verify_dataset
from tokflow.documents import DocumentsConfig, Limit, deciding_fields
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow_tests.outputs import content, new_in
from tokflow_tests.tiny import build, declare, many_ids

REJECT = {"on_bad_document": "reject"}


def dataset(folder: Path, **fields: Any) -> Dataset:
    """Return a dataset of two files; `add_bad_line` makes the second one bad."""
    (folder / "tokenizer.json").write_text(many_ids(10))
    tokenizer = {"kind": "file", "name": "tokenizer.json", "eos_token": "<eos>"}
    tokenizer |= fields.pop("tokenizer", {})
    return declare(folder, {}, tokenizer=tokenizer, **fields)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    declare(tmp_path, {"a.jsonl": ["w1 w2", "w3"], "b.jsonl": ["w4", "w5 <eos> w6"]})
    return tmp_path


def add_bad_line(folder: Path) -> None:
    with (folder / "raw/b.jsonl").open("a") as file:
        file.write('{"text": 5}\n')


def test_a_bad_line_that_is_set_aside_makes_no_other_file_again(folder: Path):
    add_bad_line(folder)
    [failed] = build_dataset(dataset(folder)).failed

    assert failed.name == "b.jsonl"
    assert new_in(build(dataset(folder, documents=REJECT))) == [
        ("tokens", "b.jsonl"),
        ("split", "b.jsonl"),
        ("sequences", "b.jsonl"),
    ]


def test_a_bad_line_set_aside_is_an_error_again_once_it_is_to_be_one(folder: Path):
    add_bad_line(folder)
    build(dataset(folder, documents=REJECT))
    before = content(folder / "store")
    strict = dataset(folder)

    built = build_dataset(strict)

    assert [str(failed.explained).split(": ")[0] for failed in built.failed] == [
        f"{folder / 'raw/b.jsonl'}, row 2, line 3, byte 39"
    ]
    assert content(folder / "store") == before
    [planned] = make_plan(strict).missing
    assert (planned.name, planned.reason) == (
        "b.jsonl",
        "config changed (it has bad documents or special tokens, now an error)",
    )
    assert any(verified.problems for verified in verify_dataset(strict))
    assert new_in(build(dataset(folder, documents={**REJECT, "max_rejects": 1}))) == []


def test_a_special_token_in_a_text_is_an_error_once_it_is_to_be_one(folder: Path):
    build(dataset(folder))

    built = build_dataset(dataset(folder, tokenizer={"special_tokens_in_text": "error"}))

    assert [failed.name for failed in built.failed] == ["b.jsonl"]
    assert "expected no special token in the text" in str(built.failed[0].explained)


@pytest.mark.parametrize(
    ("fields", "name", "is_deciding"),
    [
        ({"document_per": "line"}, "a.jsonl", False),
        ({"document_per": "line"}, "a.txt.gz", True),
        ({"format": "txt"}, "a.TXT", False),
        ({"format": "txt"}, "a.jsonl", True),
        ({"on_bad_document": "reject", "max_rejects": 1}, "a.csv", False),
        ({"text": "body"}, "a.csv", True),
        ({"text": "body"}, "a.txt", False),
        ({"keep_columns": ("url",)}, "a.csv", True),
        ({"limit": Limit(document_bytes=100)}, "a.jsonl", False),
        ({"limit": Limit(document_bytes=99)}, "a.jsonl", True),
        ({"limit": Limit(document_bytes=100)}, "a.jsonl.gz", True),
        ({"limit": Limit(document_bytes=100)}, "a.parquet", True),
        ({"limit": Limit(documents=1)}, "a.jsonl", True),
        ({"limit": Limit(tokens=1)}, "a.jsonl", True),
        ({"limit": Limit(count_empty=True)}, "a.jsonl", False),
    ],
)
def test_a_field_decides_where_the_reader_of_the_file_looks_at_it(
    fields: dict[str, Any], name: str, is_deciding: bool
):
    changed = deciding_fields(DocumentsConfig(**fields), {Path(name): 100})

    assert (changed != deciding_fields(DocumentsConfig(), {Path(name): 100})) == is_deciding


def test_a_limit_of_bytes_decides_of_a_small_file_that_is_gzip_under_a_plain_name(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    line = json.dumps({"text": "w1 " * 2_000}).encode()
    (tmp_path / "raw/a.jsonl").write_bytes(gzip.compress(line + b"\n"))
    documents = {"on_bad_document": "reject", "limit": {"document_bytes": 1_000_000}}
    build(dataset(tmp_path, documents=documents))

    smaller = {**documents, "limit": {"document_bytes": 1_000}}

    assert new_in(build(dataset(tmp_path, documents=smaller))) != []


@pytest.mark.parametrize(("eos", "is_deciding"), [("last", True), ("none", False)])
def test_the_end_of_empty_documents_decides_where_documents_end(
    eos: str, is_deciding: bool, folder: Path
):
    build(dataset(folder, tokenizer={"eos": eos}))

    built = build(dataset(folder, tokenizer={"eos": eos, "eos_of_empty": False}))

    assert bool(new_in(built)) == is_deciding


def test_special_tokens_in_a_text_decide_nothing_where_there_are_none(tmp_path: Path):
    build(declare(tmp_path, {"a.jsonl": ["<eos>"]}))

    control = {"kind": "bytes", "special_tokens_in_text": "control"}

    assert new_in(build(declare(tmp_path, tokenizer=control))) == []


@pytest.mark.parametrize(
    ("tokenizer", "documents", "is_deciding"),
    [
        ({}, {"keep_columns": ["text"]}, False),
        ({"max_characters": 5}, {"limit": {"characters": 6}}, False),
        ({"max_characters": 5}, {"limit": {"characters": 1}}, True),
    ],
)
def test_a_tokenizer_is_trained_again_where_it_would_see_another_text(
    tokenizer: dict[str, Any], documents: dict[str, Any], is_deciding: bool, tmp_path: Path
):
    declare(tmp_path, {"a.jsonl": ["abab", "cdcdcd"]})
    trained = {"kind": "trained", "vocab_size": 260}
    before = {name: of for name, of in tokenizer.items() if name == "max_characters"}

    old = made_tokenizer(tmp_path, {**trained, **before}, {})
    new = made_tokenizer(tmp_path, {**trained, **tokenizer}, documents)

    assert (old[0] != new[0], old[1] != new[1]) == (is_deciding, is_deciding)


def made_tokenizer(
    folder: Path, tokenizer: dict[str, Any], documents: dict[str, Any]
) -> tuple[str, bytes]:
    """Return the fingerprint of a trained tokenizer and its tokenizer.json."""
    output = build(declare(folder, tokenizer=tokenizer, documents=documents)).made[0].output
    return output.fingerprint, (output.folder / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("packing", "stages"),
    [
        ({"truncation_side": "left"}, []),
        ({"padding_side": "left"}, ["export"]),
        ({"overlong": "truncate", "truncation_side": "left"}, ["sequences", "sequences", "export"]),
    ],
)
def test_a_side_decides_where_something_is_added_or_taken_away_there(
    packing: dict[str, Any], stages: list[str], folder: Path
):
    usual = {"sequence_length": 4}
    if "overlong" in packing:
        usual["overlong"] = packing["overlong"]
    build(dataset(folder, packing=usual, exports=["parquet", "bin"]))

    built = build(dataset(folder, packing={**usual, **packing}, exports=["parquet", "bin"]))

    assert [stage for stage, _ in new_in(built)] == stages


def test_what_dagster_shows_and_when_and_how_it_runs_makes_nothing_again(folder: Path):
    build(dataset(folder))

    shown = {
        "automation": True,
        "schedule": "0 3 * * *",
        "scan": "hourly",
        "timezone": "Europe/Berlin",
        "owners": ["team:other"],
        "tags": {"domain": "code"},
        "key_prefix": "warehouse/text",
        "translator": "naming:Names",
        "pool": "big",
        "executor": "multiprocess",
    }

    assert new_in(build(dataset(folder, **shown))) == []

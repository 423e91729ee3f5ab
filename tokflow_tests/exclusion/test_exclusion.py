"""`exclude` in a dataset: what lists name is in no export, and nothing else is made again."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from tokflow.audit.document_trace import trace_document
from tokflow.errors import ConfigError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.describe import statistics_of
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.raw_files import FileShare
from tokflow.pipeline.run import build_dataset
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import problems_of
from tokflow_tests.pipeline.test_mixture import declare_mixture, declare_source, documents_of
from tokflow_tests.selection.test_stage import tokens_of, why, write_rows
from tokflow_tests.tiny import build, declare

ROWS: dict[str, list[tuple[str, str, int]]] = {
    "a.jsonl": [("three", "u0", 5), ("one", "u1", 1), ("seven", "u2", 0), ("six", "u3", 4)],
    "b.jsonl": [("two", "u4", 9), ("one", "u5", 2), ("", "u6", 3), ("ten", "7", 3)],
    "c.jsonl": [("eleven", "u8", 1), ("one", "u1", 1)],
}
KEPT = {"keep_columns": ["lang", "stars"]}
PARTS = {"train": {"fraction": 0.5}, "rest": {"fraction": 0.5}}
HASHED = {"train": {"hash_fraction": 0.5}, "rest": {"hash_fraction": 0.5}}


def declared(folder: Path, rows: Any = ROWS, **attributes: Any) -> Dataset:
    write_rows(folder, rows)
    fields = {"documents": KEPT, "exports": ["bin"], "split": {"parts": HASHED}, **attributes}
    return declare(folder, **fields)


def write_list(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        lines = [",".join(map(str, of.values())) for of in rows]
        path.write_text("\n".join([",".join(rows[0]), *lines]) + "\n")
    else:
        path.write_text("".join(json.dumps(of) + "\n" for of in rows))
    return path


def without(names: set[tuple[str, int]]) -> dict[str, list[tuple[str, str, int]]]:
    return {
        file: [row for number, row in enumerate(rows) if (file, number) not in names]
        for file, rows in ROWS.items()
    }


def hashed(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())


BY = {
    "row": [{"file": "a.jsonl", "row": 1}, {"file": "b.jsonl", "row": 3}],
    "text_hash": [{"text_hash": hashed("one")}, {"text_hash": hashed("ten")}],
    "lang": [{"lang": "u1"}, {"lang": "7"}],
}
NAMED = {
    "row": {("a.jsonl", 1), ("b.jsonl", 3)},
    "text_hash": {("a.jsonl", 1), ("b.jsonl", 1), ("b.jsonl", 3), ("c.jsonl", 1)},
    "lang": {("a.jsonl", 1), ("b.jsonl", 3), ("c.jsonl", 1)},
}


FIELDS: dict[str, Any] = {
    "file": {},
    "dataset": {"split": {"scope": "dataset", "parts": PARTS}},
    "duplicate": {"select": "not duplicate and num_chars > 2"},
    "near": {"select": "not near_duplicate", "near_duplicates": {"threshold": 0.3, "ngram": 2}},
}


@pytest.mark.parametrize(
    ("by", "suffix", "copies", "group", "form"),
    [
        *(("row", "csv", False, 2, "file"), ("row", "jsonl", False, None, "dataset")),
        *(("row", "parquet", True, 2, "duplicate"), ("row", "parquet", True, 2, "near")),
        *(("lang", "csv", True, None, "file"), ("lang", "parquet", False, 2, "dataset")),
        *(("lang", "jsonl", True, 2, "duplicate"), ("lang", "csv", False, None, "near")),
        *(("text_hash", "jsonl", False, None, "file"), ("text_hash", "csv", False, 2, "dataset")),
        *(("text_hash", "parquet", False, 2, "duplicate"), ("text_hash", "csv", False, 2, "near")),
    ],
)
def test_what_a_list_names_is_as_if_it_were_not_in_the_raw_files(
    tmp_path: Path, by: str, suffix: str, copies: bool, group: int | None, form: str
):
    write_list(tmp_path / f"list.{suffix}", BY[by])
    named = NAMED["text_hash"] if copies else NAMED[by]
    fields = {"raw": {"files": "raw/*.jsonl", "group": group}, **FIELDS[form]}
    excluded = declared(
        tmp_path, exclude={"path": f"list.{suffix}", "copies": copies, "by": by}, **fields
    )
    alone = declared(tmp_path / "alone", without(named), **fields)
    build(excluded)
    build(alone)

    assert tokens_of(excluded) == tokens_of(alone)
    assert problems_of(excluded) == []


def built_with(folder: Path, rows: list[dict[str, Any]], **fields: Any) -> Any:
    write_list(folder / "list.jsonl", rows)
    dataset = declared(folder, exclude="list.jsonl", **fields)
    return dataset, build(dataset)


def make_exclusion(dataset: Dataset) -> None:
    raise build_dataset(dataset).failed[0].error


def test_another_list_makes_the_selections_that_it_concerns_and_no_token(tmp_path: Path):
    fields = {"exports": ["bin", "parquet"], "packing": {"sequence_length": 4}}
    build(declared(tmp_path, **fields))
    write_list(tmp_path / "list.jsonl", [{"file": "a.jsonl", "row": 1}])
    dataset = declared(tmp_path, exclude="list.jsonl", **fields)

    first = build(dataset)
    write_list(
        tmp_path / "list.jsonl",
        [{"file": "b.jsonl", "row": 0}, {"file": "a.jsonl", "row": 1}],
    )
    second = build(dataset)
    write_list(
        tmp_path / "list.jsonl",
        [{"file": "a.jsonl", "row": 1}, {"file": "b.jsonl", "row": 0}],
    )
    third = build(dataset)

    def made(built: Any) -> list[str]:
        return sorted(
            of.output.title for of in built.made if of.is_new and of.output.step.name != "export"
        )

    everything = [f"selection of {of}.jsonl" for of in "abc"]
    a, b = ([f"{of} of {key}.jsonl" for of in ("sequences", "split")] for key in "ab")
    assert made(first) == sorted([*a, "exclusion", *everything])
    assert made(second) == sorted([*b, "exclusion", "selection of b.jsonl"])
    assert [of.output.title for of in third.made if of.is_new] == ["exclusion"]
    assert why(dataset) == {}


def test_documents_are_counted_by_reason_and_each_leads_to_its_row(tmp_path: Path):
    rows = [
        {"lang": "u1", "reason": "asked for by the author"},
        {"lang": "u3", "reason": None},
        {"lang": "none has it", "reason": "asked for by the author"},
    ]
    dataset, built = built_with(tmp_path, rows, select="num_chars > 3")

    counted = {of["rule"]: of["num_left_out"] for of in statistics_of(built)["select"]}
    assert counted == {
        "excluded: asked for by the author": 2,
        "excluded: list.jsonl": 1,
        "num_chars > 3": 7,
    }
    assert [of["rule"] for of in statistics_of(built)["select"]] == [*counted]
    manifest = graph_of(dataset).output("exclusion").open().manifest
    assert manifest.counts["num_unused_rows"] == 1
    assert manifest.details["unused"] == {"list.jsonl": [2]}
    for file, row, reason in (
        ("c.jsonl", 1, "asked for by the author"),
        ("a.jsonl", 3, "list.jsonl"),
    ):
        place = f"list.jsonl, row {int(file == 'a.jsonl')}"
        assert trace_document(dataset, file, row).why_not == f"excluded: {reason} ({place})"
    rule = trace_document(dataset, "b.jsonl", 0).why_not
    assert rule == "left out by select: num_chars > 3"


def test_a_copy_is_counted_once_and_leads_to_the_row_that_names_its_text(tmp_path: Path):
    write_list(tmp_path / "list.csv", [{"lang": "u1"}])
    dataset = declared(tmp_path, exclude={"path": "list.csv", "copies": True})
    build(dataset)

    counts = graph_of(dataset).output("exclusion").open().manifest.counts
    assert (counts["num_documents"], counts["num_copies"]) == (3, 1)
    why_not = trace_document(dataset, "b.jsonl", 1).why_not
    assert why_not == "excluded: list.csv (the text of list.csv, row 0)"


@pytest.mark.parametrize(
    ("rows", "exclude", "error"),
    [
        ([{"file": "a.jsonl", "row": 4}], {}, "documents of tiny by their row, found none"),
        ([{"file": "z.jsonl", "row": 0}], {}, "found none, by 1 row"),
        ([{"name": "x"}], {}, "one of `file` and `row`, text_hash, lang, stars"),
        ([{"lang": "u1", "text_hash": hashed("one")}], {}, "found text_hash, lang"),
        ([{"text_hash": "12"}], {}, "keys of 32 hex digits"),
        ([{"lang": "u1"}], {"by": "url"}, "exclude.by: expected one of row, text_hash, lang"),
        ([{"lang": "u1"}], {"by": "text_hash"}, "without text_hash"),
    ],
)
def test_a_list_that_names_no_document_is_an_error(
    tmp_path: Path, rows: Any, exclude: Any, error: str
):
    write_list(tmp_path / "list.jsonl", rows)
    exclude = {"path": "list.jsonl", **exclude}

    with pytest.raises(ConfigError, match=error):
        make_exclusion(declared(tmp_path, exclude=exclude))


def test_in_a_group_a_row_past_the_end_of_its_file_names_no_document_of_the_next(tmp_path: Path):
    raw = {"files": "raw/*.jsonl", "group": 2}
    rows = [{"file": "a.jsonl", "row": 4}, {"file": "c.jsonl", "row": 0}]
    dataset, _ = built_with(tmp_path, rows, raw=raw)

    manifest = graph_of(dataset).output("exclusion").open().manifest
    assert manifest.details["unused"] == {"list.jsonl": [0]}
    assert trace_document(dataset, "b.jsonl", 0).why_not is None


def mixture(folder: Path, texts: list[str], store: str, **more: Any) -> Dataset:
    """Return a mixture of two passes over texts, one file for two, and PROSE of others."""
    files = {f"{at}.jsonl": texts[at : at + 2] for at in range(0, len(texts), 2)}
    declare_source(folder, "code", files, store=store, **more)
    declare_source(folder, "prose", {"p.jsonl": ["p00", "one"]}, store=store)
    sources = {"code": {"epochs": 2}, "prose": {"epochs": 1}}
    return declare_mixture(folder, {"sources": sources}, exports=["bin"], store=store)


def test_a_mixture_takes_what_its_sources_have_left_at_a_url_too(
    tmp_path: Path, object_store: ObjectStore
):
    write_list(tmp_path / "list.csv", [{"text_hash": hashed("one")}])
    url, texts = f"{object_store.url}/store", ["one", "two", "six", "ten"]
    excluded = mixture(tmp_path, texts, url, exclude="list.csv")
    build(excluded)

    assert documents_of(excluded, "train") == [
        *("two", "two", "six", "ten", "six", "ten", "p00", "one")  # each file twice
    ]
    assert problems_of(excluded) == []
    counts = graph_of(excluded.sources[0]).output("exclusion").open().manifest.counts
    assert counts["num_documents"] == 1


def test_shares_leave_what_lists_name_to_the_whole_run(tmp_path: Path):
    write_list(tmp_path / "list.csv", BY["lang"])
    dataset = declared(tmp_path, exclude="list.csv")
    of_shares = [build_dataset(dataset, share=FileShare(number, 2)) for number in (1, 2)]

    whole = build(dataset)

    made = [{of.output.step.name for of in share.made} for share in of_shares]
    assert made == [{"tokenizer", "tokens"}] * 2
    assert {of.output.step.name for of in whole.made if of.is_new} == {
        *("exclusion", "selection", "split", "export")
    }
    alone = declared(tmp_path / "alone", without(NAMED["lang"]))
    build(alone)
    assert tokens_of(dataset) == tokens_of(alone)

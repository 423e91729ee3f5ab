"""Columns from outside: aligned by row, by a kept column, by the hash of the text."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from tokflow.attributes.stage import ATTRIBUTES, ATTRIBUTES_NAME
from tokflow.audit.checks import Checker
from tokflow.components import make_definitions
from tokflow.errors import ChangedFileError, ConfigError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import make_output
from tokflow.pools.pool import ignore
from tokflow.store.tables import read_table
from tokflow_tests.outputs import problems_of
from tokflow_tests.selection.test_stage import why
from tokflow_tests.tiny import build, declare

ROWS = {
    "a.jsonl": [("one", "u1"), ("two", "u2"), ("three", None)],
    "b.jsonl": [("four", "u4"), ("two", "u5")],
}
QUALITY = {"quality": "number"}


def write_json(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def declared(
    folder: Path, scores: dict[str, Any] | None = None, rows: Any = ROWS, **attributes: Any
) -> Dataset:
    for key, of_file in rows.items():
        write_json(folder / "raw" / key, [{"text": text, "url": url} for text, url in of_file])
    fields = {"documents": {"keep_columns": ["url"]}, "exports": ["bin"], **attributes}
    named = {"scores": {"files": "scores/*", "columns": QUALITY, **scores}} if scores else {}
    return declare(folder, attributes={**named, **fields.pop("more", {})}, **fields)


def values_of(dataset: Dataset, column: str = "quality") -> list[list[Any]]:
    graph = graph_of(dataset)
    outputs = [graph.output("attributes", key, "scores") for key in graph.partitions]
    return [read_table(of.open().file(ATTRIBUTES_NAME))[column].to_pylist() for of in outputs]


def counts_of(graph: BuildGraph, key: str) -> dict[str, int]:
    return dict(graph.output("attributes", key, "scores").counts)


def test_rows_are_those_of_each_raw_file_in_any_order(tmp_path: Path):
    of_a = [{"row": 2, "quality": 3}, {"row": 0, "quality": 1}, {"row": 7, "quality": 9}]
    write_json(tmp_path / "scores/a.jsonl", of_a)
    write_json(tmp_path / "scores/b.jsonl", [{"row": 0, "quality": 4}, {"row": 1, "quality": 5}])
    dataset = declared(tmp_path, {"key": "row"}, select="quality >= 3")
    build(dataset)

    assert values_of(dataset) == [[1.0, None, 3.0], [4.0, 5.0]]
    assert counts_of(graph_of(dataset), "a.jsonl") == {
        "num_documents": 3,
        "num_without": 1,
        "num_unused_rows": 1,
    }
    kept = [graph_of(dataset).open(graph_of(dataset).output("selection", key)) for key in ROWS]
    assert [of.tolist() for of in kept] == [[False, False, True], [True, True]]
    assert problems_of(dataset) == []


def test_rows_count_in_each_file_of_a_group(tmp_path: Path):
    for name, num in (("a", 3), ("b", 2)):
        rows = [{"row": row, "quality": 10 * num + row} for row in reversed(range(num + 1))]
        write_json(tmp_path / "scores" / f"{name}.jsonl", rows)
    dataset = declared(tmp_path, {"key": "row"}, raw={"files": "raw/*", "group": "1MB"})
    build(dataset)

    assert values_of(dataset) == [[30.0, 31.0, 32.0, 20.0, 21.0]]
    [key] = graph_of(dataset).partitions
    assert counts_of(graph_of(dataset), key)["num_unused_rows"] == 2  # past the end of each


@pytest.mark.parametrize(
    ("of", "group", "version"),
    [
        ({"files": "scores/*", "key": "row"}, "1MB", 2),
        ({"files": "scores/*", "key": "row"}, None, 1),
        ({"files": "scores/*", "key": "url"}, "1MB", 1),
        ({"function": "scoring:quality"}, "1MB", 1),
    ],
)
def test_only_tables_by_row_in_a_group_have_the_version_of_groups(
    tmp_path: Path, of: dict[str, Any], group: str | None, version: int
):
    more = {"scores": {"columns": QUALITY, **of}}
    dataset = declared(tmp_path, more=more, raw={"files": "raw/*", "group": group})

    assert ATTRIBUTES.declared_recipe(dataset, "scores").version == version


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_kept_column_finds_its_row_in_tables_of_all_files(tmp_path: Path, suffix: str):
    (tmp_path / "scores").mkdir(parents=True)
    table = {"url": ["u5", "u1", "u4", "u9"], "quality": [5, 1, None, 9]}
    path = tmp_path / "scores" / f"all.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.table(table), path)
    elif suffix == "csv":
        path.write_text("quality,url\n5,u5\n1,u1\n,u4\n9,u9\n")
    else:
        rows = zip(table["url"], table["quality"], strict=True)
        write_json(path, [{"url": url, "quality": quality} for url, quality in rows])
    dataset = declared(tmp_path, {"key": "url"})
    build(dataset)

    assert values_of(dataset) == [[1.0, None, None], [None, 5.0]]
    counts = {"num_documents": 3, "num_without": 2}  # of tables of all files no unused rows
    assert counts_of(graph_of(dataset), "a.jsonl") == counts


def test_they_are_an_asset_between_the_tokens_and_the_selection(tmp_path: Path):
    more = {"more": {"files": "scores/*", "key": "url", "columns": {"other": "text"}}}
    dataset = declared(tmp_path, {"key": "url"}, select="quality > 0", more=more)
    specs = make_definitions(dataset).resolve_all_asset_specs()
    parents = {
        "/".join(of.key.path[1:]): {"/".join(dep.asset_key.path[1:]) for dep in of.deps}
        for of in specs
    }

    assert parents["attributes/scores"] == parents["attributes/more"] == {"tokens"}
    assert parents["selection"] == {"tokens", "attributes/scores"}


def test_equal_texts_have_one_value_by_the_hash_of_the_text(tmp_path: Path):
    digest = xxhash.xxh3_128_hexdigest(b"two")
    write_json(tmp_path / "scores/all.jsonl", [{"text_hash": digest, "quality": 2}])
    dataset = declared(tmp_path, {"key": "text_hash"})
    build(dataset)

    assert values_of(dataset) == [[None, 2.0, None], [None, 2.0]]


def test_what_is_not_named_by_select_makes_no_selection_again(tmp_path: Path):
    for name, num in (("a", 3), ("b", 2)):
        write_json(
            tmp_path / "scores" / f"{name}.jsonl",
            [{"row": row, "quality": 1, "other": 2} for row in range(num)],
        )
    scores = {"key": "row"}
    build(declared(tmp_path, scores, select="quality > 0"))
    more = {"more": {"files": "scores/*", "columns": {"other": "number"}}}

    missing = make_plan(declared(tmp_path, scores, select="quality > 0", more=more)).missing
    assert {of.output.title for of in missing} == {
        "attributes of a.jsonl (more)",
        "attributes of b.jsonl (more)",
    }

    write_json(tmp_path / "scores/b.jsonl", [{"row": 1, "quality": 0}])
    reasons = why(declared(tmp_path, scores, select="quality > 0"))
    assert "attributes of a.jsonl (scores)" not in reasons
    assert reasons["selection of b.jsonl"] == "config changed (attributes.scores)"


@pytest.mark.parametrize(
    ("scores", "rows", "expected", "found"),
    [
        ({"key": "url"}, [{"url": "u1", "quality": 1}] * 2, "each key once", "1 several times"),
        ({"key": "url"}, [{"quality": 1}, {"url": "u1"}], "a key in each row", "1 of 2 rows"),
        ({"key": "url"}, [{"url": "u1", "quality": "x"}], "a table of parquet", "JSON parse error"),
        ({"key": "url"}, [{"url": "u1"}], "a table of parquet", "url, without quality"),
        ({"key": "text_hash"}, [{"text_hash": "zz", "quality": 1}], "keys of 32 hex", "non-hex"),
        ({"key": "row"}, [{"row": 0, "quality": 1}], "a table for each", "tables of other names"),
    ],
)
def test_tables_that_cannot_be_right_are_errors(
    tmp_path: Path, scores: dict[str, Any], rows: list[dict[str, Any]], expected: str, found: str
):
    write_json(tmp_path / "scores/all.jsonl", rows)

    with pytest.raises(AssertionError) as error:
        build(declared(tmp_path, scores))
    assert f"expected {expected}" in str(error.value)
    assert f"found {found}" in str(error.value)


def test_a_table_that_changes_after_it_was_hashed_is_not_taken(
    tmp_path: Path,
):
    path = tmp_path / "scores/all.jsonl"
    write_json(path, [{"url": "u1", "quality": 1}])
    dataset = declared(tmp_path, {"key": "url"})
    graph = graph_of(dataset)
    make_output(graph, "tokenizer", "tokenizer")
    make_output(graph, "tokens", "a.jsonl")
    output = graph.output("attributes", "a.jsonl", "scores")
    writer = output.step.writer(output)
    write_json(path, [{"url": "u1", "quality": 22}])

    with pytest.raises(ChangedFileError):
        writer.write(None, tmp_path, ignore)


def test_a_file_without_a_table_has_no_values_and_an_empty_table_has_none(tmp_path: Path):
    write_json(tmp_path / "scores/a.jsonl", [])
    dataset = declared(tmp_path, {"key": "row"})
    build(dataset)

    assert values_of(dataset) == [[None, None, None], [None, None]]
    [outcome] = Checker(graph := graph_of(dataset)).outcomes(
        "attributes", [*graph.outputs_of("attributes", ROWS)]
    )
    assert outcome.problems == ["attributes.scores: no document has a value; correct its `key`"]


def test_keys_are_text_and_whole_numbers_have_to_be_exact(tmp_path: Path):
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores/all.csv").write_text("url,quality\n007,1\n2021-01-01,2\n")
    urls = {"a.jsonl": [("x", "7"), ("y", "007")], "b.jsonl": [("z", "2021-01-01")]}
    dataset = declared(tmp_path, {"key": "url"}, rows=urls)
    build(dataset)
    assert values_of(dataset) == [[None, 1.0], [2.0]]

    (tmp_path / "scores/all.csv").unlink()
    table = pa.table({"url": ["7"], "quality": pa.array([2**53], pa.int64())})
    pq.write_table(table, tmp_path / "scores/all.parquet")
    with pytest.raises(AssertionError, match="found 9,007,199,254,740,992"):
        build(declared(tmp_path, {"key": "url"}, rows=urls))


@pytest.mark.parametrize(
    ("scores", "attributes", "where"),
    [
        ({"key": "uri"}, {}, "test: attributes.scores.key"),
        ({"key": "quality"}, {}, "test: attributes.scores.columns"),
        ({"columns": {}}, {}, "test: attributes.scores.columns"),
        ({"columns": {"url": "text"}}, {"select": "url == ''"}, "test: select"),
        ({}, {"select": "scores.quality == ''"}, "test: select: character 19"),
    ],
)
def test_wrong_attributes_are_errors_when_the_yaml_is_read(
    tmp_path: Path, scores: dict[str, Any], attributes: dict[str, Any], where: str
):
    with pytest.raises(ConfigError) as error:
        declared(tmp_path, {"key": "row", **scores}, **attributes)
    assert error.value.where == where


CALLED = """
def measure(texts):
    print("called")
    assert len(texts) <= 2
    return {"quality": [len(of) if of != "two" else None for of in texts], "other": texts}
"""


def declared_function(folder: Path, code: str = CALLED, **attributes: Any) -> Dataset:
    (folder / "model.py").write_text(code)
    fields = {"function": "model:measure", "columns": QUALITY, "batch": 2}
    more = {"scores": {**fields, **attributes.pop("scores", {})}}
    return declared(folder, more=more, **attributes)


def test_a_function_has_the_texts_in_batches_of_any_size(tmp_path: Path):
    documents = {"keep_columns": ["url"], "on_bad_document": "reject", "limit": {"tokens": 14}}
    dataset = declared_function(tmp_path, select="quality >= 4", documents=documents)
    with (tmp_path / "raw/b.jsonl").open("a") as file:
        file.write('{"text": 5, "url": "x"}\n')
    build(dataset)

    assert values_of(dataset) == [[3.0, None, 5.0], [4.0, None]]
    assert problems_of(dataset) == []


def test_a_file_without_documents_calls_no_function(tmp_path: Path):
    dataset = declared_function(tmp_path, rows={"a.jsonl": [], "b.jsonl": [("four", None)]})
    build(dataset)

    assert values_of(dataset) == [[], [4.0]]


def test_another_tokenizer_calls_no_function_again_and_another_module_does(tmp_path: Path):
    build(declared_function(tmp_path, exports=[]))
    other = declared_function(tmp_path, exports=[], tokenizer={"kind": "bytes", "eos": "none"})

    build(other)
    made = {of.output.title for of in make_plan(other).planned if of.output.stage == "attributes"}
    assert made == {"attributes of a.jsonl (scores)", "attributes of b.jsonl (scores)"}
    assert len([*graph_of(other).output("attributes", "a.jsonl", "scores").place.iterdir()]) == 1

    again = why(declared_function(tmp_path, CALLED + "\n", exports=[]))
    assert again["attributes of a.jsonl (scores)"] == "config changed (module)"
    later = why(declared_function(tmp_path, exports=[], scores={"function_version": 2}))
    assert "attributes of a.jsonl (scores)" in later
    assert why(declared_function(tmp_path, exports=[], scores={"batch": 1})) == {}


@pytest.mark.parametrize(
    ("body", "expected", "found"),
    [
        ("return 1 / 0", "values of each text", "ZeroDivisionError"),
        ("return texts", "a mapping with quality", "list"),
        ("return {'quality': [1]}", "2 values of quality", "1"),
        ("return {'quality': 5}", "a list of values of quality", "int"),
        ("return {'quality': [2**70] * 2}", "numbers, texts or truth values", ""),
    ],
)
def test_what_a_function_does_wrong_is_named_with_its_place(
    tmp_path: Path, body: str, expected: str, found: str
):
    with pytest.raises(AssertionError) as error:
        build(declared_function(tmp_path, f"def measure(texts):\n    {body}\n"))

    assert f"expected {expected}" in str(error.value)
    assert f"found {found}" in str(error.value)
    assert "b.jsonl, rows 0 to 1" in str(error.value)

"""`select` in a dataset: what is left out, what is counted, what is made again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.audit.checks import Checker
from tokflow.audit.document_trace import trace_document
from tokflow.cli.plan import what_select_moves
from tokflow.errors import ConfigError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.describe import statistics_of
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow_tests.outputs import problems_of
from tokflow_tests.tiny import build, declare

ROWS = {
    "a.jsonl": [("three", "en", 5), ("one", "de", 1), ("seven", None, "x"), ("six", "en", None)],
    "b.jsonl": [("two", "en", 9), ("eight", "en", 2), ("", "en", 3)],
}
KEPT = {"keep_columns": ["lang", "stars"]}
FORMS: dict[str, Any] = {
    "cut": {"boundary": "character", "parts": {"x": {"characters": 7}, "y": {"start": 7}}},
    "documents": {"parts": {"x": {"documents": 1}, "y": {"start": 1}}},
    "drawn": {"parts": {"x": {"fraction": 0.5}, "y": {"fraction": 0.5}}},
    "hashed": {"parts": {"x": {"hash_fraction": 0.5}, "y": {"hash_fraction": 0.5}}},
}


def write_rows(folder: Path, rows: dict[str, list[tuple[Any, ...]]]) -> None:
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    for key, of_file in rows.items():
        lines = [dict(zip(("text", "lang", "stars"), row, strict=True)) for row in of_file]
        (folder / "raw" / key).write_text("".join(json.dumps(line) + "\n" for line in lines))


def declared(folder: Path, select: Any, rows: Any = ROWS, **attributes: Any) -> Dataset:
    write_rows(folder, rows)
    fields = {"documents": KEPT, "exports": ["bin"], **attributes}
    return declare(folder, select=select, **fields)


def tokens_of(dataset: Dataset) -> dict[str, list[int]]:
    stored = graph_of(dataset).named("export", "bin").open()
    stored.fetch()
    files = {part: stored.folder / f"{part}.bin" for part in dataset.split.parts}
    return {of: np.fromfile(at, np.uint16).tolist() for of, at in files.items() if at.exists()}


def why(dataset: Dataset) -> dict[str, str]:
    return {of.output.title: of.reason for of in make_plan(dataset).missing}


@pytest.mark.parametrize(
    ("form", "scope"),
    [
        *(("cut", "file"), ("cut", "dataset"), ("documents", "dataset")),
        *(("drawn", "dataset"), ("hashed", "file")),
    ],
)
def test_a_selection_is_as_if_the_rest_were_not_in_the_raw_files(
    tmp_path: Path, form: str, scope: str
):
    split = {**FORMS[form], "scope": scope}
    kept = {key: [row for row in rows if len(row[0]) > 3] for key, rows in ROWS.items()}
    selected = declared(tmp_path / "selected", "num_chars > 3", split=split)
    alone = declared(tmp_path / "alone", "", kept, split=split)
    build(selected)
    build(alone)

    assert tokens_of(selected) == tokens_of(alone)
    assert sum(map(len, tokens_of(alone).values())) >= 18
    assert problems_of(selected) == []


def test_each_rule_counts_what_it_leaves_out_alone_and_without_a_value(tmp_path: Path):
    select = "lang == 'en' and number(stars) >= 3 and file != 'c.jsonl'"
    built = build(declared(tmp_path, select))

    assert statistics_of(built)["select"] == [
        {"rule": rule, "num_left_out": num, "num_left_out_alone": alone, "num_without_value": none}
        for rule, num, alone, none in (
            ("lang == 'en'", 2, 0, 1),
            ("number(stars) >= 3", 4, 2, 2),
            ("file != 'c.jsonl'", 0, 0, 0),
        )
    ]


def test_another_spelling_makes_nothing_and_another_threshold_makes_no_token(tmp_path: Path):
    build(declared(tmp_path, "num_tokens>=4 and lang == 'en'"))

    assert make_plan(declared(tmp_path, '(num_tokens >= 4) and lang == "en"')).is_up_to_date
    reasons = why(declared(tmp_path, "num_tokens >= 5 and lang == 'en'"))
    assert {title.split()[0] for title in reasons} == {"selection", "split", "export"}
    assert reasons["split of a.jsonl"] == "input changed (selection)"


def test_a_quantile_over_the_dataset_sees_all_files_and_one_over_a_file_its_own(tmp_path: Path):
    of_all = declared(tmp_path, "num_chars >= quantile(0.5)")
    build(of_all)
    kept = [graph_of(of_all).open(graph_of(of_all).output("selection", key)) for key in ROWS]
    assert [of.tolist() for of in kept] == [[True, True, True, True], [True, True, False]]
    assert problems_of(of_all) == []

    write_rows(tmp_path, {"c.jsonl": [("a long text", "en", 1)] * 9})
    assert "selection of a.jsonl" in why(of_all)

    of_file = declared(tmp_path, "num_chars >= file_quantile(1)")
    build(of_file)
    kept = [graph_of(of_file).open(graph_of(of_file).output("selection", key)) for key in ROWS]
    assert [of.tolist() for of in kept] == [[True, False, True, False], [False, True, False]]
    write_rows(tmp_path, {"d.jsonl": [("longer than all of them", "en", 1)]})
    assert "selection of a.jsonl" not in why(of_file)


@pytest.mark.parametrize(
    ("select", "kept"),
    [("file == 'b.jsonl'", b"twoeight"), ("num_chars >= file_quantile(1)", b"threeseveneight")],
)
def test_files_of_a_group_are_told_apart(tmp_path: Path, select: str, kept: bytes):
    dataset = declared(tmp_path, select, raw={"files": "raw/*", "group": "1MB"})
    build(dataset)

    assert bytes(of for of in tokens_of(dataset)["train"] if of < 256) == kept


@pytest.mark.parametrize(
    ("row", "part", "why_not"),
    [(0, "train", None), (1, None, "left out by select: lang == 'en'"), (4, None, "rejected: ")],
)
def test_a_document_is_traced_to_its_part_or_to_what_leaves_it_out(
    tmp_path: Path, row: int, part: str | None, why_not: str | None
):
    rows = {**ROWS, "a.jsonl": [*ROWS["a.jsonl"], (7, "en", 1)]}
    documents = {**KEPT, "on_bad_document": "reject"}
    dataset = declared(tmp_path, "lang == 'en' and num_chars > 1", rows, documents=documents)
    build(dataset)

    found = trace_document(dataset, "a.jsonl", row)

    assert [piece["part"] for piece in found.pieces] == ([] if row == 4 else [part])
    assert (found.why_not or "").startswith(why_not or "")
    assert (found.why_not is None) == (why_not is None)
    assert found.values == (
        {}
        if row == 4
        else {"lang": ROWS["a.jsonl"][row][1], "num_chars": len(ROWS["a.jsonl"][row][0])}
    )


@pytest.mark.parametrize(
    ("raw_file", "row", "where"), [("c.jsonl", 0, "--file"), ("a.jsonl", 4, "--row")]
)
def test_a_document_that_is_not_there_is_an_error(
    tmp_path: Path, raw_file: str, row: int, where: str
):
    dataset = declared(tmp_path, "")
    build(dataset)

    with pytest.raises(ConfigError) as error:
        trace_document(dataset, raw_file, row)
    assert error.value.where == where


@pytest.mark.parametrize(
    ("attributes", "where"),
    [
        ({"select": "lan == 'en'"}, "test: select: character 1"),
        ({"select": 3}, "test: select"),
        ({"select": ["file == ''"]}, "test: select"),
        ({"select": "file == ''", "documents": {"keep_columns": ["file"]}}, "test: select"),
        ({"strata": {"a.b": True}}, "test: strata"),
        ({"strata": {"en": "lan == 'en'"}}, "test: strata.en: character 1"),
        ({"strata": {"once": "not duplicate"}}, "test: strata.once"),
        ({"strata": {"en": 3}}, "test: strata.en"),
        ({"strata": ["lang == 'en'"]}, "test: strata"),
    ],
)
def test_a_wrong_expression_is_an_error_when_the_yaml_is_read(
    tmp_path: Path, attributes: dict[str, Any], where: str
):
    with pytest.raises(ConfigError) as error:
        declare(tmp_path, **{"documents": KEPT, **attributes})
    assert error.value.where == where


@pytest.mark.parametrize(
    ("split", "is_said"),
    [
        ({"train": 0.9, "validation": 0.1}, True),
        ({"parts": {"train": {"hash_fraction": 1.0}, "x": {"hash_fraction": 0.0}}}, False),
        ({}, False),
    ],
)
def test_a_plan_says_where_another_select_moves_documents_between_parts(
    tmp_path: Path, split: Any, is_said: bool
):
    assert bool(what_select_moves(declared(tmp_path, "num_chars > 1", split=split))) == is_said
    assert what_select_moves(declared(tmp_path, "", split=split)) is None


def test_a_file_that_loses_most_and_rules_without_values_are_warned_of(tmp_path: Path):
    rows = {f"{name}.jsonl": [("a text", "en", 1)] * 10 for name in "abc"}
    rows["d.jsonl"] = [("a text", "en", 1), *[("a text", None, 1)] * 9]
    dataset = declared(tmp_path, "lang == 'en' and number(stars) == 1", rows)
    build(dataset)
    graph = graph_of(dataset)

    [outcome] = Checker(graph).outcomes("selection", [*graph.outputs_of("selection", rows)])

    assert outcome.problems == [
        "d.jsonl: select leaves out 90% of the documents, of other files 0%",
        "lang == 'en': 9 of 40 documents have no value",
    ]
    assert outcome.check.is_warning

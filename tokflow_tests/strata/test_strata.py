"""`strata` in a dataset: which part each document is in, what is counted, what is made again."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from tokflow.audit.document_trace import trace_document
from tokflow.audit.found_documents import pieces_of
from tokflow.audit.verify import verify_dataset
from tokflow.cli.closing_summary import left_out
from tokflow.exports.config import DeclaredExports
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import load_datasets
from tokflow.pipeline.describe import statistics_of
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.views.report_page import make_report
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import problems_of
from tokflow_tests.selection.test_stage import FORMS, KEPT, ROWS, declared, why
from tokflow_tests.tiny import build, declare

STRATA = {"best": "number(stars) >= 5", "en": "lang == 'en'", "rest": True}


def with_strata(folder: Path, strata: Any, rows: Any = ROWS, **attributes: Any) -> Dataset:
    return declared(folder, attributes.pop("select", ""), rows, strata=strata, **attributes)


def parts_by_piece(dataset: Dataset) -> dict[tuple[str, int, int], str | None]:
    """Return the part of each piece of a document, by its raw file, row and first character."""
    graph = graph_of(dataset)
    pieces = [pieces_of(graph.open_split(key)).to_pylist() for key in graph.partitions]
    return {
        (of["raw_file"], of["row"], of["char_start"]): of["part"] for of in itertools.chain(*pieces)
    }


def random_rows(choose: random.Random) -> dict[str, list[tuple[Any, ...]]]:
    def row() -> tuple[Any, ...]:
        text = "x" * choose.randrange(7)
        return text, choose.choice(["en", "de", None]), choose.choice([1, 5, None, "x"])

    return {f"{key}.jsonl": [row() for _ in range(choose.randrange(1, 30))] for key in "abc"}


RULES = {
    "lang == 'en'": lambda text, lang, stars: lang == "en",
    "not lang == 'en'": lambda text, lang, stars: lang == "de",
    "number(stars) >= 3": lambda text, lang, stars: stars == 5,
    "num_chars > 4 or lang is None": lambda text, lang, stars: len(text) > 4 or lang is None,
    "num_chars < 3 and number(stars) == 1": lambda text, lang, stars: len(text) < 3 and stars == 1,
}
"""Expressions, and what they mean: of what is missing nothing is true."""


@pytest.mark.parametrize("seed", range(8))
def test_each_document_is_in_the_first_stratum_that_is_true_of_it(tmp_path: Path, seed: int):
    choose = random.Random(seed)
    rows, asked = random_rows(choose), choose.sample(sorted(RULES), 3)
    form, scope = choose.choice(sorted(FORMS)), choose.choice(["file", "dataset"])
    split = {**FORMS[form], "scope": scope}
    select = choose.choice(["", "num_chars != 3"])
    undivided = declared(tmp_path / "undivided", select, rows, split=split)
    strata = {f"s{number}": rule for number, rule in enumerate(asked)}
    divided = with_strata(tmp_path / "divided", strata, rows, split=split, select=select)
    build(undivided)
    build(divided)

    def expected(key: str, row: int, part: str | None) -> str | None:
        is_true = [RULES[rule](*rows[key][row]) for rule in asked]
        return f"{part}.s{is_true.index(True)}" if part and any(is_true) else None

    assert parts_by_piece(divided) == {
        (key, row, at): expected(key, row, part)
        for (key, row, at), part in parts_by_piece(undivided).items()
    }
    assert problems_of(divided) == []


def test_what_no_stratum_takes_and_what_has_no_value_is_counted(tmp_path: Path):
    strata = {"best": "number(stars) >= 5", "en": "lang == 'en'"}
    split = {"parts": {"x": {"documents": 1}, "y": {"start": 1}}}
    dataset = with_strata(tmp_path, strata, split=split, select="num_chars != 5")
    built = build(dataset)

    assert statistics_of(built)["strata"] == [
        {"stratum": "best", "num_documents": 2, "num_tokens": 10, "num_without_value": 2},
        {"stratum": "en", "num_documents": 3, "num_tokens": 11, "num_without_value": 1},
    ]
    # Kept are one and six of a.jsonl, two and an empty one of b.jsonl; x has one and two.
    rows = statistics_of(built)["parts"]
    assert {row["part"]: row["num_documents"] for row in rows} == {
        "x.best": 1,
        "x.en": 0,
        "y.best": 0,
        "y.en": 2,
    }
    selected, *lines = left_out(dataset, built)
    assert selected.startswith("left out by select: 3 documents of 7; ")
    assert lines == [
        "in no stratum: 3 characters of 1 document (4 tokens)",
        "x.en: no text falls into this part",
        "y.best: no text falls into this part",
    ]


def test_a_document_of_no_stratum_is_traced_to_that(tmp_path: Path):
    dataset = with_strata(tmp_path, {"en": "lang == 'en'"})
    build(dataset)

    taken, lost = (trace_document(dataset, "a.jsonl", row) for row in (0, 1))

    assert [piece["part"] for piece in taken.pieces] == ["train.en"]
    assert (taken.why_not, lost.why_not) == (None, "in no stratum")
    assert lost.values == {"lang": "de"}


def test_another_spelling_makes_nothing_and_another_stratum_makes_no_token(tmp_path: Path):
    (tmp_path / "scores.jsonl").write_text('{"id": "en", "score": 1}')
    scores = {"files": "scores.jsonl", "key": "lang", "columns": {"score": "number"}}
    build(with_strata(tmp_path, {"s": "num_tokens>=4 and lang == 'en'", "rest": True}))
    spelled = {"s": '(num_tokens >= 4) and (lang == "en")', "rest": "True"}

    assert make_plan(with_strata(tmp_path, spelled)).is_up_to_date
    unused = make_plan(with_strata(tmp_path, spelled, attributes={"scores": scores}))
    assert {of.output.stage for of in unused.missing} <= {"attributes"}
    reasons = why(with_strata(tmp_path, {"s": "num_tokens >= 5", "rest": True}))
    assert {title.split()[0] for title in reasons} == {"strata", "split", "export"}
    assert reasons["split of a.jsonl"] == "input changed (strata)"


def test_without_strata_and_select_nothing_is_another_output(tmp_path: Path):
    build(declared(tmp_path, ""))

    assert make_plan(with_strata(tmp_path, {})).is_up_to_date
    assert make_plan(with_strata(tmp_path, None)).is_up_to_date
    assert make_plan(declare(tmp_path, documents=KEPT, exports=["bin"])).is_up_to_date
    assert not (tmp_path / "store/tiny/selection").exists()


def test_a_quantile_is_over_all_files_or_one(tmp_path: Path):
    strata = {"long": "num_chars >= quantile(0.75)", "own": "num_chars >= file_quantile(0.75)"}
    dataset = with_strata(tmp_path, strata)
    build(dataset)

    found = {piece[:2]: part for piece, part in parts_by_piece(dataset).items()}
    sizes = {(key, row): len(of[0]) for key, rows in ROWS.items() for row, of in enumerate(rows)}
    # three one seven six / two eight "": 5 3 5 3 3 5 0; quantiles 5, of a.jsonl 5, of b.jsonl 4
    assert found == {of: "train.long" if size >= 5 else None for of, size in sizes.items()}
    assert problems_of(dataset) == []


def test_packing_of_a_part_is_that_of_its_strata_unless_one_has_its_own(tmp_path: Path):
    split = {"parts": {"train": {"documents": 2}, "validation": {"start": 2}}}
    parts = {"validation": {"sequence_length": 2}, "validation.en": {"sequence_length": 8}}
    packing = {"sequence_length": 4, "parts": parts}
    own = {"parts": {"validation": {"sequence_length": 16}, "train.en": {"sequence_length": 1}}}
    exports = ["parquet", "llmc", {"format": "jsonl", "packing": own}]
    dataset = with_strata(tmp_path, STRATA, split=split, packing=packing, exports=exports)
    build(dataset)

    names = [f"{part}.{of}" for part in ("train", "validation") for of in STRATA]
    declared_exports = dataset.of(DeclaredExports)
    lengths = [
        [packing.of_part(name).sequence_length for name in names]
        for packing in map(declared_exports.packing_of, declared_exports.configs)
    ]
    assert dataset.parts == tuple(names)
    assert lengths == [[4, 4, 4, 2, 8, 2]] * 2 + [[4, 1, 4, 16, 16, 16]]
    files = graph_of(dataset).named("export", "llmc").manifest().files
    assert "tiny_val.en_000000.bin" in files
    assert problems_of(dataset) == []


@pytest.mark.parametrize("stage", ["strata", "selection"])
def test_it_is_verified_by_being_made_again_at_a_url_too(
    stage: str, tmp_path: Path, object_store: ObjectStore
):
    strata, select = ({"s": "num_chars > 3"}, "") if stage == "strata" else ({}, "num_chars > 3")
    store = f"{object_store.url}/store"
    dataset = with_strata(tmp_path, strata, select=select, store=store, split=FORMS["cut"])
    build(dataset)

    found = {of.name: of for of in verify_dataset(dataset)}
    assert [of.problems for of in found.values() if of.problems] == []
    assert found[f"{stage} of a.jsonl"].notes == ()
    assert make_plan(dataset).is_up_to_date


def test_the_report_has_a_row_for_each_stratum(tmp_path: Path):
    dataset = with_strata(tmp_path, {"gold": "lang == 'en'", "rest": True})
    build(dataset)

    page = make_report(dataset).html
    assert page.count(b">gold<") == 1
    assert b"train.gold" in page


def test_strata_stand_in_place_of_those_of_the_defaults_for_their_order_decides(tmp_path: Path):
    datasets = {"a": {}, "b": {"strata": {"best": "num_chars > 9", "rest": True}}}
    raw, strata = {"files": "*.txt"}, {"long": "num_chars > 5", "rest": True}
    defaults = {"raw": raw, "tokenizer": "bytes", "strata": strata}
    path = tmp_path / "both.yaml"
    path.write_text(yaml.safe_dump({"defaults": defaults, "datasets": datasets}))

    a, b = load_datasets(path)

    assert (a.parts, b.parts) == (("train.long", "train.rest"), ("train.best", "train.rest"))

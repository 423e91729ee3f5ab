"""What a trace of a document says of exports, against the tokens that they have of it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokflow
from tokflow.audit.document_trace import DocumentTrace, trace_document, trace_documents
from tokflow.errors import ConfigError
from tokflow.exports.reading import open_export
from tokflow.loaders import Loader, open_rows
from tokflow.pipeline.dataset import Dataset
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.pipeline.test_mixture import CODE, declare_mixture, declare_source
from tokflow_tests.tiny import EOS, build, declare, load_dataset

WORDS = {"a.jsonl": ["one", "", "three and a half"], "b.jsonl": ["four", "five"]}


def held(dataset: Dataset, trace: DocumentTrace) -> dict[str, list[str]]:
    """Return the texts that the rows and columns of a trace have in each export, as it names it."""
    found: dict[str, list[str]] = {}
    for of in trace.exports:
        name = of.output if of.output.count("/") == 3 else f"{of.output}/latest"
        export = open_export(dataset.store.root / name)
        texts = found.setdefault(of.output, [])
        for tokens in of.tokens:
            fields = [some["token_ids"] for some in export.read(tokens.part)]
            ids = np.concatenate([some.reshape(-1) for some in fields])
            at = tokens.position
            if tokens.sequence is not None:
                at = tokens.sequence * export.of_part(tokens.part).sequence_length + tokens.column
            own = ids[at : at + tokens.num_tokens].tolist()
            texts.append(bytes(36 if of_id == EOS else of_id for of_id in own).decode())
    return found


def test_the_rows_and_columns_of_a_document_have_its_tokens(tmp_path: Path):
    dataset = declare(tmp_path, WORDS, exports=["bin", "parquet"])
    build(dataset)

    found = trace_document(dataset, "a.jsonl", 2)

    assert held(dataset, found) == {
        "tiny/exports/bin": ["three and a half$"],
        "tiny/exports/parquet": ["thr", "ee a", "nd a", " hal", "f$"],
    }
    assert [of.why_not for of in found.exports] == [None, None]
    assert (found.token_start, found.num_tokens, found.sequences) == (
        5,
        17,
        {"train": [1, 2, 3, 4]},
    )


@pytest.mark.parametrize(
    ("packing", "row", "texts", "why_not"),
    [
        ({"tail": "drop"}, 2, ["s", "even"], "1 of 6 tokens in train are in no row: tail: drop"),
        (
            {"strategy": "greedy", "overlong": "drop"},
            2,
            [],
            "6 of 6 tokens in train are in no row: overlong: drop",
        ),
        (
            {"overlap": 2, "tail": "drop"},
            2,
            ["s", "sev", "even"],
            "1 of 6 tokens in train are in no row: tail: drop",
        ),
        ({"overlap": 2, "tail": "drop"}, 0, ["one$", "e$"], None),
    ],
)
def test_what_packing_leaves_out_of_a_document_is_its_reason(
    tmp_path: Path, packing: dict[str, Any], row: int, texts: list[str], why_not: str | None
):
    files = {"a.jsonl": ["one", "is", "seven"]}
    packing = {"sequence_length": 4, **packing}
    dataset = declare(tmp_path, files, packing=packing, exports=["parquet"])
    build(dataset)

    found = trace_document(dataset, "a.jsonl", row)

    assert held(dataset, found) == {"tiny/exports/parquet": texts}
    assert [of.why_not for of in found.exports] == [why_not]


def test_each_piece_of_a_cut_document_has_its_own_reason(tmp_path: Path):
    parts = {"train": {"characters": 4}, "validation": {"start": 4}}
    split = {"parts": parts, "boundary": "character"}
    of_export = {"packing": {"sequence_length": 4, "tail": "drop"}, "exports": ["parquet"]}
    dataset = declare(tmp_path, {"a.jsonl": ["abcdef"]}, split=split, **of_export)
    build(dataset)

    found = trace_document(dataset, "a.jsonl", 0)

    assert [(of["part"], of["num_tokens"]) for of in found.pieces] == [
        ("train", 5),
        ("validation", 3),
    ]
    assert found.exports[0].why_not == (
        "1 of 5 tokens in train are in no row: tail: drop; "
        "3 of 3 tokens in validation are in no row: tail: drop"
    )


def test_a_mixture_holds_each_pass_or_says_what_it_takes(tmp_path: Path):
    sources = {"code": {"epochs": 2}, "prose": {"epochs": 0.5}}
    mixed = declare_mixture(tmp_path, {"sources": sources})
    build(mixed)
    [code, prose] = mixed.sources

    found = trace_document(code, "a.jsonl", 1)

    assert found == trace_document(mixed, "code/a.jsonl", 1)
    assert held(code, found) == {
        "mixed/exports/bin": ["ab$", "ab$"],
        "mixed/exports/parquet": ["a", "b$", "a", "b$"],
    }
    passes = [(of.raw_file, of.row) for of in found.exports[0].tokens]
    assert passes == [("code/a.jsonl", 1), ("code@2/a.jsonl", 1)]
    traces = trace_documents(mixed, where="file == 'c.jsonl'", limit=None).documents
    reasons = [of.exports[-1].why_not for of in traces]
    assert reasons.count("the mixture does not take it") == 10
    assert all(held(prose, of)["mixed/exports/bin"] for of in traces if not of.exports[-1].why_not)


def test_an_older_build_is_looked_into_by_the_text_where_rows_moved(tmp_path: Path):
    build(declare(tmp_path, {"a.jsonl": ["one", "two", "four"]}, exports=["bin"]))
    [old] = (tmp_path / "store/tiny/split/a.jsonl").iterdir()
    dataset = declare(tmp_path, {"a.jsonl": ["two", "six"]}, exports=["bin"])
    build(dataset)

    two, six = (trace_document(dataset, "a.jsonl", row) for row in (0, 1))

    latest, older = sorted(of.output for of in two.exports)
    assert held(dataset, two) == {latest: ["two$"], older: ["two$"]}
    assert (latest, older.startswith("tiny/exports/bin/")) == ("tiny/exports/bin", True)
    rows = {of.output: [tokens.row for tokens in of.tokens] for of in two.exports}
    assert rows == {latest: [0], older: [1]}
    assert held(dataset, six) == {latest: ["six$"], older: []}
    [reason] = [of.why_not for of in six.exports if of.why_not]
    assert reason.startswith("it was made without this text")

    shutil.rmtree(old)

    [of_old] = [of for of in trace_document(dataset, "a.jsonl", 1).exports if of.output == older]
    assert (of_old.tokens, of_old.why_not) == ([], reason)  # what is at this row there is "two"


def test_documents_of_a_store_at_a_url_are_found_by_another_machine(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    dataset = declare(tmp_path, WORDS, store=f"{object_store.url}/store", exports=["parquet"])
    build(dataset)
    here = trace_documents(dataset, text=b"four")
    monkeypatch.setenv("TOKFLOW_CACHE", str(tmp_path / "other"))

    there = declare(tmp_path, store=f"{object_store.url}/store", exports=["parquet"])

    assert trace_documents(there, text=b"four") == here
    assert [of.output for of in here.documents[0].exports] == ["tiny/exports/parquet"]


def test_what_is_left_out_of_parts_is_in_no_export(tmp_path: Path):
    dataset = declare(tmp_path, WORDS, exports=["bin"], select="num_chars > 3")
    build(dataset)

    found = trace_document(dataset, "a.jsonl", 0)

    assert found.why_not == "left out by select: num_chars > 3"
    assert [(of.tokens, of.why_not) for of in found.exports] == [([], "it was in no part")]


def test_a_row_past_the_end_of_a_file_in_a_group_is_none_of_the_next_file(tmp_path: Path):
    dataset = declare(tmp_path, WORDS, raw={"files": "raw/*", "group": "1MB"})
    build(dataset)

    assert trace_document(dataset, "b.jsonl", 0).num_chars == 4
    with pytest.raises(ConfigError, match=r"a row of a\.jsonl, which has 3, .*found 3"):
        trace_document(dataset, "a.jsonl", 3)
    limited = declare(tmp_path, documents={"limit": {"documents": 9}})
    build(limited)
    for row in (2, -1):
        with pytest.raises(ConfigError, match=rf"a row of b\.jsonl, which has 2, .*found {row}"):
            trace_document(limited, "b.jsonl", row)
    empty = declare(tmp_path, {"b.jsonl": []})
    build(empty)
    with pytest.raises(ConfigError, match=r"which has 0, .*found 0; name another file"):
        trace_document(empty, "b.jsonl", 0)


@pytest.mark.parametrize(
    ("limit", "row", "why_not"),
    [
        ({"documents": 1}, 2, "not read: b.jsonl has 1 rows up to documents.limit"),
        (
            {"documents": 1, "scope": "dataset"},
            0,
            "not read: files before it reach documents.limit",
        ),
    ],
)
def test_what_a_limit_leaves_unread_is_said(
    tmp_path: Path, limit: dict[str, Any], row: int, why_not: str
):
    dataset = declare(tmp_path, WORDS, documents={"limit": limit})
    build(dataset)

    assert str(trace_document(dataset, "b.jsonl", row).why_not).startswith(why_not)
    assert trace_document(dataset, "a.jsonl", 0).why_not is None


def test_a_record_leads_to_all_that_a_transform_made_of_it(tmp_path: Path):
    (tmp_path / "making.py").write_text("def split(text):\n    return text.split()\n")
    transform = {"transform": "making:split"}
    dataset = declare(tmp_path, {"a.jsonl": ["x", "one two", "", "six"]}, documents=transform)
    build(dataset)

    two, none = (trace_document(dataset, "a.jsonl", row) for row in (2, 3))

    assert (two.record, two.rows_of_record, two.num_chars) == (1, [1, 2], 3)
    assert none.why_not == "documents.transform made no document of it, record 2"
    found = trace_documents(dataset, where="record == 1 or row == 4", limit=2)
    assert (found.num_documents, [of.row for of in found.documents]) == (3, [1, 2])


def test_records_of_a_group_count_in_their_own_file(tmp_path: Path):
    (tmp_path / "making.py").write_text("def split(text):\n    return text.split()\n")
    files = {"a.jsonl": ["one two"], "b.jsonl": ["", "six"]}
    transform, raw = {"transform": "making:split"}, {"files": "raw/*", "group": "1MB"}
    dataset = declare(tmp_path, files, documents=transform, raw=raw)
    build(dataset)

    none = trace_document(dataset, "b.jsonl", 0)

    assert none.why_not == "documents.transform made no document of it, record 0"


def test_documents_are_found_by_columns_and_by_their_text(tmp_path: Path):
    rows = [{"text": text, "url": f"u/{text}"} for text in ("one", "two", "one")]
    dataset = declare(tmp_path, {"b.jsonl": ["one"]}, documents={"keep_columns": ["url"]})
    (tmp_path / "raw/a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    build(dataset)

    def places(**asked: Any) -> list[tuple[str, int]]:
        found = trace_documents(dataset, **asked)
        assert found.num_documents == len(found.documents)
        return [(of.raw_file, of.row) for of in found.documents]

    assert places(where="url == 'u/one'") == [("a.jsonl", 0), ("a.jsonl", 2)]
    assert places(where="url is None or num_chars == 3 and row == 1") == [
        ("a.jsonl", 1),
        ("b.jsonl", 0),
    ]
    assert places(text=b"one\r\n") == [("a.jsonl", 0), ("a.jsonl", 2), ("b.jsonl", 0)]
    for asked, message in [
        (
            {"where": "url == 'u'"},
            "--where: expected a document that it is true of, found none of 4",
        ),
        ({"where": "urll == 'u'"}, "--where: character 1: .*found urll; did you mean 'url'"),
        ({"where": "not duplicate"}, "--where: expected what is known of a document by itself"),
        ({"text": b"one "}, "--text: expected the text of a document, found none of 4"),
        ({}, "expected either where or text, found neither"),
        ({"where": "row == 0", "text": b"one"}, "expected either where or text, found both"),
    ]:
        with pytest.raises(ConfigError, match=message):
            places(**asked)


def test_a_name_is_that_of_a_declared_dataset():
    with pytest.raises(ConfigError, match="name of a dataset that the project declares"):
        tokflow.trace_documents("nothing", where="row == 0")


def test_a_training_on_one_source_has_seen_nothing_of_the_others(tmp_path: Path):
    of_code = {"exports": ["parquet"], "packing": {"sequence_length": 4}}
    build(load_dataset(declare_source(tmp_path, "code", CODE, **of_code)))
    mixed = declare_mixture(tmp_path, {"sources": {"code": {"epochs": 1}, "prose": {"epochs": 1}}})
    build(mixed)
    rows = open_rows(tmp_path / "store/code/exports/parquet/latest", "train")
    with Loader(rows, batch_size=5) as loader:
        next(loader)
        state = loader.state_dict()

    traces = trace_documents(mixed, where="row == 3", state=state).documents

    steps = [(of.dataset, {sample.step for sample in of.seen or ()}) for of in traces]
    assert steps == [("code", {0}), ("prose", set())]
    with pytest.raises(ConfigError, match=r"expected a training on prose, .* on code/exports/"):
        trace_document(mixed, "prose/c.jsonl", 3, state=state)

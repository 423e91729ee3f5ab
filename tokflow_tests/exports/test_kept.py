"""Columns that are kept of raw files stand beside the documents that are of the same record."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.audit.trace import trace_tokens
from tokflow.documents import ranges
from tokflow.documents.config import OWN_COLUMNS, DocumentsConfig
from tokflow.errors import ConfigError
from tokflow.exports import FORMATS, stage
from tokflow.exports.columns import TYPES
from tokflow.exports.index import INDEX_SCHEMA
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.run import build_dataset
from tokflow.tokens import shard_files
from tokflow_tests.exports.exporting import fields_in
from tokflow_tests.outputs import index_of, problems_of
from tokflow_tests.pipeline.test_mixture import declare_mixture, declare_source
from tokflow_tests.tiny import EOS, build, declare

KEPT: dict[str, Any] = {"keep_columns": ["url", "meta.n"], "on_bad_document": "reject"}

TRANSFORM = """
def made(text):
    if text.endswith("2"):
        return None
    return [text, text.upper()] if text.endswith("4") else text
"""


def records(stem: str, num: int = 9) -> list[dict[str, Any]]:
    """Return records whose text is their url; of every fifth it is no text."""
    found = [{"text": f"{stem}-{n}", "url": f"{stem}-{n}", "meta": {"n": n}} for n in range(num)]
    return [{**of, "text": None} if n % 5 == 3 else of for n, of in enumerate(found)]


def write(folder: Path, num: int = 9) -> None:
    (folder / "raw").mkdir()
    (folder / "made_of.py").write_text(TRANSFORM)
    for stem in "abc":
        lines = [json.dumps(record) + "\n" for record in records(stem, num)]
        (folder / f"raw/{stem}.jsonl").write_text("".join(lines))


def check_index(dataset: Dataset, num_documents: int) -> None:
    """Compare the text of each document with the url that the index has for it."""
    folder = (dataset.folder / "exports/bin/latest").resolve()
    tokens = np.fromfile(folder / "train.bin", "<u2")
    rows = index_of(folder, "train")
    for row in rows:
        text = bytes(tokens[row["position"] :][: row["num_tokens"] - 1].astype(np.uint8)).decode()
        assert text.lower() == row["url"]
        assert row["url"].endswith(f"-{row['meta.n']}")
    assert len(rows) == num_documents
    assert problems_of(dataset) == []


@pytest.mark.parametrize(
    ("attributes", "num_documents"),
    [
        ({}, 21),
        ({"documents": {**KEPT, "text": ["text", "url"]}}, 48),
        ({"documents": {**KEPT, "transform": "made_of:made"}}, 21),
        ({"documents": {**KEPT, "limit": {"documents": 4}}}, 12),
        ({"shuffle": {"seed": 1, "documents": "dataset"}}, 21),
        ({"raw": {"files": "raw/*.jsonl", "group": 2}}, 21),
    ],
    ids=["plain", "two columns", "transform", "limit", "shuffle", "group"],
)
def test_the_index_has_of_each_document_the_columns_of_its_record(
    attributes: dict[str, Any], num_documents: int, tmp_path: Path
):
    write(tmp_path)
    dataset = declare(tmp_path, {}, **{"documents": KEPT, "exports": ["bin"], **attributes})

    folder = build(dataset).export("bin").folder

    check_index(dataset, num_documents)
    for row in index_of(folder, "train")[:2]:
        start = row["position"]
        [origin] = trace_tokens(folder, part="train", start=start, stop=start + 1)
        assert origin.kept == {"url": row["url"], "meta.n": row["meta.n"]}


@pytest.mark.parametrize("group", [None, 3])
def test_segments_of_a_shard_keep_the_columns_of_their_own_records(
    group: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shard_files, "WHOLE_RANGES", 1)
    monkeypatch.setattr(ranges, "RANGE_BYTES", 500)
    write(tmp_path, num=50)
    raw = {"files": "raw/*.jsonl", "group": group}

    built = build(dataset := declare(tmp_path, {}, raw=raw, documents=KEPT, exports=["bin"]))

    shards = [made for made in built.made if made.output.stage == "tokens"]
    assert all(len(shard.manifest.details["segments"]) > 1 for shard in shards)
    check_index(dataset, 120)


BYTES = [b"ok", b"\xff\0", b"ok"]
NUMBERS = [1.5, float("nan"), None]
MORE = [[1.0], [float("inf")], []]
LOST: dict[str, tuple[bytes | pa.Table, int]] = {
    "parquet": (pa.table({"text": ["a", "b", "c"], "url": ["x", "y", "z"], "sha": BYTES,
                          "n": NUMBERS, "more": MORE}), 3),
    "jsonl": (b'{"text": "a", "url": "x", "sha": "ok", "n": 1.5, "more": [1.0]}\n'
              b'{"text": "b", "url": "y", "sha": "\xff", "n": 1e999, "more": {"a": "\xff"}}\n'
              b'{"text": "c", "url": "z", "sha": "ok", "more": []}\n', 3),
    "csv": (b"text,url,sha,n,more\na,x,ok,1.5,[1.0]\nb,y,\xff,,\nc,z,ok,,[]\n", 1),
}  # fmt: skip


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "jsonl", "csv"])
def test_a_value_that_is_no_text_and_no_json_is_null_alone_and_counted(suffix: str, tmp_path: Path):
    (tmp_path / "raw").mkdir()
    content, num_lost = LOST["parquet" if suffix == "arrow" else suffix]
    path = tmp_path / f"raw/a.{suffix}"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif suffix == "parquet":
        pq.write_table(content, path)
    else:
        with pa.ipc.new_file(path, content.schema) as writer:
            writer.write_table(content)
    names = ["url", "sha", "n", "more"]
    fields = {"raw": {"files": "raw/*"}, "documents": {"keep_columns": names}, "exports": ["bin"]}

    built = build(declare(tmp_path, {}, **fields))

    index = index_of(built.export("bin").folder, "train")
    none = "" if suffix == "csv" else None
    assert [[row[name] for name in names] for row in index] == [
        ["x", "ok", "1.5", "[1.0]"],
        ["y", None, none, none],
        ["z", "ok", none, "[]"],
    ]
    [shard] = built.of("tokens")
    assert shard.manifest.counts["num_lost_values"] == num_lost
    assert [of.text.split()[1] for of in built.notices if of.name == "lost_values"] == [
        f"{num_lost}"
    ]


def test_records_are_told_apart_behind_a_bad_one_of_many_lines(tmp_path: Path):
    bad = '"' + "\n" * 1_500 + '"\n'
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.csv").write_text(f"text,url\na,of a\n{bad}b,of b\n")
    documents = {"keep_columns": ["url"], "on_bad_document": "reject", "max_rejects": 2_000}

    raw = {"files": "raw/*"}
    built = build(declare(tmp_path, {}, raw=raw, documents=documents, exports=["bin"]))

    rows = index_of(built.export("bin").folder, "train")
    assert [(row["row"], row["url"]) for row in rows] == [(0, "of a"), (1502, "of b")]


@pytest.mark.parametrize(
    ("name", "content", "kept", "where"),
    [
        ("a.csv", "text,url\na,b\n", "ulr", "a.csv"),
        ("a.txt", "a", "url", "a.txt"),
        ("a.jsonl", '{"text": "a", "tokens": "b"}\n', "tokens", "exports: torchtune: rename"),
    ],
)
def test_a_column_that_cannot_be_kept_is_named(
    name: str, content: str, kept: str, where: str, tmp_path: Path
):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / name).write_text(content)
    fields = {"raw": {"files": "raw/*"}, "documents": {"keep_columns": [kept]}}
    exports, packing = [{"preset": "torchtune"}], {"strategy": "one_document"}

    built = build_dataset(declare(tmp_path, **fields, exports=exports, packing=packing))

    assert where in built.failed[0].error.where


@pytest.mark.parametrize(("range_bytes", "group"), [(500, None), (2**20, 3)])
def test_a_field_that_no_record_has_is_named_but_a_rare_one_is_null(
    range_bytes: int, group: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shard_files, "WHOLE_RANGES", 1)
    monkeypatch.setattr(ranges, "RANGE_BYTES", range_bytes)
    write(tmp_path, num=50)
    with (tmp_path / "raw/a.jsonl").open("a") as file:
        file.write('{"text": "last", "rare": 1}\n')
    for name in "bc":
        (tmp_path / f"raw/{name}.jsonl").write_text('{"text": "few"}\n' * 9)
    raw = {"files": "raw/*.jsonl", "group": group}

    for column in ("rare", "ulr"):
        documents = {"keep_columns": [column], "on_bad_document": "reject"}
        failed = build_dataset(declare(tmp_path, {}, raw=raw, documents=documents)).failed
        assert len(failed) == (column == "ulr")

    assert "a.jsonl: expected records with the key 'ulr', found none; the first has the keys" in (
        said := str(failed[0].explained)
    )
    assert "'meta' (nearest: 'url'); correct documents.keep_columns" in said


@pytest.mark.parametrize("names", [["url", "url"], ["labels"]])
def test_names_that_index_or_rows_have_and_names_twice_are_refused(names: list[str]):
    with pytest.raises(ConfigError) as raised:
        DocumentsConfig(keep_columns=names)

    assert raised.value.where.endswith("keep_columns")
    assert {*INDEX_SCHEMA.names, *TYPES} == OWN_COLUMNS


@pytest.mark.parametrize(
    ("within", "shuffle"),
    [
        (None, {"sequences": True}),
        ("several tasks", {}),
        ("several tasks", {"documents": "dataset"}),
    ],
)
def test_rows_of_one_document_have_its_columns_in_every_format_of_columns(
    shuffle: dict[str, Any], within: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path)
    formats = [name for name in FORMATS if "padding" in FORMATS[name].options.model_fields]
    options = {"shards": 4, "padding": "none"}
    packing = {"sequence_length": 4, "strategy": "one_document", "padding_side": "left"}
    if within:
        monkeypatch.setattr(stage, "SEGMENT_TOKENS", 20)

    dataset = declare(
        tmp_path,
        {},
        documents=KEPT,
        packing=packing,
        shuffle=shuffle,
        exports=[{"format": name, **options} for name in formats],
    )
    built = build(dataset)

    for name in formats:
        fields = fields_in(built.export(name), "train")
        found = [fields[each] for each in ("token_ids", "url", "meta.n")]
        for tokens, url, n in zip(*found, strict=True):
            assert tokens == [*url.encode(), EOS]
            assert url.endswith(f"-{n}")
        assert len(found[0]) == 21
    assert problems_of(dataset) == []


def test_each_pass_of_a_mixture_has_the_columns_that_its_source_keeps(tmp_path: Path):
    for name, documents in (("code", {"keep_columns": ["url"]}), ("prose", {})):
        declare_source(tmp_path, name, {}, documents=documents)
        (tmp_path / name).mkdir()
        lines = [json.dumps({"text": f"{n}", "url": f"{name}-{n}"}) + "\n" for n in range(2)]
        (tmp_path / name / "a.jsonl").write_text("".join(lines))
    mixture = {"sources": {"code": {"epochs": 2}, "prose": {"epochs": 1}}}

    built = build(declare_mixture(tmp_path, mixture, exports=["bin"]))

    index = index_of(built.export("bin").folder, "train")
    assert [row["url"] for row in index] == ["code-0", "code-1"] * 2 + [None, None]

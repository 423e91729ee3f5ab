"""Documents that a user's function makes of the records of a raw file."""

import sys
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.documents import DocumentsConfig, DocumentSource, Limit, Reject, deciding_fields
from tokflow.documents.ranges import Range
from tokflow.errors import BadDocumentError, ConfigError
from tokflow_tests.reading import write_records

SOURCE = """import sys
def strip(text):
    return text.strip()

def words(text):
    for word in text.split():
        if word == "boom":
            raise ValueError("a word that\\nis bad")
        yield word

def shown(record):
    return repr(record)

def english(record):
    return record["text"] if record["language"] == "en" else None

def wrong(text):
    return {"none": None, "number": 5, "bytes": b"x", "list": ["a", 5], "set": {"a"},
            "surrogate": "\\ud800", "long": "x" * 101, "empty": [], "tuple": ("a", "b")}[text]

class Text(str):
    def encode(self):
        raise ValueError("its own")

class Silent(Exception):
    def __str__(self):
        raise ValueError("its own")

def ends(text):
    if text == "exit":
        sys.exit()
    if text == "status":
        sys.exit(0)
    if text == "ascii":
        return "é".encode("ascii").decode()
    if text == "silent":
        raise Silent
    return Text(text)

def printing(text):
    print("called with", text)
    return text

def memory(text):
    raise MemoryError("of the machine")
"""

FORMATS = ("jsonl", "csv", "tsv", "parquet", "arrow", "txt")


class Found(NamedTuple):
    documents: list[tuple[int, int, str]]
    """Row, record and text."""
    rejects: list[tuple[int, int | None]]
    """Row and record."""
    counts: tuple[int, int, int]
    """Rows, records and what was left out."""


def config(folder: Path, name: str, **fields: Any) -> DocumentsConfig:
    (folder / "functions.py").write_text(SOURCE)
    found = DocumentsConfig(transform=f"functions:{name}", **fields)
    return found.at(folder, where="test")


def find(path: Path, documents: DocumentsConfig, within: Range | None = None) -> Found:
    source = DocumentSource([path], documents, within=within)
    rejects: list[Reject] = []
    found: list[tuple[int, int, str]] = []
    batches = source.batches(batch_bytes=20, on_reject=lambda _, reject: rejects.append(reject))
    for batch in batches:
        assert batch.records is not None
        texts = batch.texts.to_pylist()
        assert batch.num_chars.tolist() == list(map(len, texts))
        found += zip(batch.rows.tolist(), batch.records.tolist(), texts, strict=True)
    counts = (sum(source.num_rows), source.num_records, source.num_left_out)
    return Found(found, [(reject.row, reject.record) for reject in rejects], counts)


def per_line(suffix: str) -> dict[str, Any]:
    return {"document_per": "line"} if suffix == "txt" else {}


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_record_becomes_no_document_or_one_or_several(suffix: str, tmp_path: Path):
    texts = ["a b", " ", "boom", "é", "c d e", " "]
    path = write_records(tmp_path / f"a.{suffix}", [{"id": 1, "text": text} for text in texts])
    documents = config(tmp_path, "words", on_bad_document="reject", **per_line(suffix))

    found = find(path, documents)

    assert found.documents == [
        (0, 0, "a"), (1, 0, "b"), (4, 3, "é"), (5, 4, "c"), (6, 4, "d"), (7, 4, "e"),
    ]  # fmt: skip
    assert found.rejects == [(3, 2)]
    assert found.counts == (9, 6, 2)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow", "txt"])
def test_ranges_give_what_the_whole_gives(suffix: str, tmp_path: Path):
    texts = ["a b", " ", "boom", "é f", " ", "boom", "x", "  ", "y z", "boom"]
    path = write_records(tmp_path / f"a.{suffix}", [{"text": text} for text in texts])
    documents = config(tmp_path, "words", on_bad_document="reject", **per_line(suffix))
    is_columns = suffix in ("parquet", "arrow")
    edges = [0, 1, 3, 3, 5] if is_columns else [0, 20, 40, 41, path.stat().st_size]
    edges = [min(edge, path.stat().st_size) for edge in edges]

    whole = find(path, documents)
    made = Found([], [], (0, 0, 0))
    for start, stop in pairwise(edges):
        rows, records, _ = made.counts
        of_range = find(path, documents, Range(start, stop))
        made = Found(
            [*made.documents, *((r + rows, n + records, t) for r, n, t in of_range.documents)],
            [*made.rejects, *((r + rows, (n or 0) + records) for r, n in of_range.rejects)],
            tuple(map(sum, zip(made.counts, of_range.counts, strict=True))),
        )

    assert made == whole


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv", "arrow"])
def test_columns_that_are_a_list_give_a_record(suffix: str, tmp_path: Path):
    records = [
        {"text": "one", "language": "en", "other": "x"},
        {"text": "zwei", "language": "de", "other": "y"},
        {"text": "três", "language": "en", "other": "z"},
    ]
    path = write_records(tmp_path / f"a.{suffix}", records)

    found = find(path, config(tmp_path, "english", text=("text", "language")))
    shown = find(path, config(tmp_path, "shown", text=("other",)))

    assert found == Found([(0, 0, "one"), (2, 2, "três")], [], (3, 3, 1))
    assert [text for *_, text in shown.documents] == [
        "{'other': 'x'}", "{'other': 'y'}", "{'other': 'z'}",
    ]  # fmt: skip


def test_values_of_a_record_are_those_of_json(tmp_path: Path):
    record = {
        "s": "é\u2028", "i": 2**62, "f": 0.1, "b": True, "n": None, "l": ["a", None],
        "m": {"x": None, "y": {"z": "deep"}}, "t": datetime(2026, 1, 2, 3, 4),
    }  # fmt: skip
    columns = ("s", "m.y.z", "i", "f", "b", "n", "l", "m", "t")
    parquet = write_records(tmp_path / "a.parquet", [record])
    record["t"] = "2026-01-02T03:04:00"
    jsonl = write_records(tmp_path / "a.jsonl", [record])
    documents = config(tmp_path, "shown", text=columns)
    expected = {**record, "m.y.z": "deep"}

    for path in (parquet, jsonl):
        [(_, _, text)] = find(path, documents).documents
        assert text == repr({name: expected[name] for name in columns})


@pytest.mark.parametrize("blank", [[], [""]])
def test_fields_that_a_record_lacks_are_none_unless_all_lack_them(blank: list[str], tmp_path: Path):
    path = tmp_path / "a.jsonl"
    lines = ['{"text": "a", "m": {"k": 1}}', '{"text": "b"}', *blank, '{"text": "c", "m": null}']
    path.write_text("\n".join([*lines, *['{"m": {}}'] * 9]))

    found = find(path, config(tmp_path, "shown", text=("text", "m.k")))

    assert [text for *_, text in found.documents][:4] == [
        "{'text': 'a', 'm.k': 1}", "{'text': 'b', 'm.k': None}", "{'text': 'c', 'm.k': None}",
        "{'text': None, 'm.k': None}",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"the key 'mm', found none.*nearest: 'm'"):
        find(path, config(tmp_path, "shown", text=("text", "mm")))


def test_a_record_that_is_none_is_bad_before_the_function_sees_it(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'{"text": "a"}\n[]\n{"text": "\xff"}\n{"text": "\\ud800"}\n{"text": "b"}\n{"\n'
    )
    documents = config(tmp_path, "shown", text=("text",), on_bad_document="reject")

    found = find(path, documents)

    assert [(row, text) for row, _, text in found.documents] == [
        (0, "{'text': 'a'}"), (4, "{'text': 'b'}"),
    ]  # fmt: skip
    assert found.rejects == [(1, 1), (2, 2), (3, 3), (5, 5)]


def test_bytes_are_text_times_are_in_iso_8601_and_nan_is_null(tmp_path: Path):
    path = tmp_path / "a.parquet"
    struct = pa.struct({"k": pa.large_binary(), "n": pa.int8()})
    columns = {
        "b": pa.array(["é".encode(), b"\xff", None], pa.binary()),
        "f": pa.array([0.5, 1, float("nan")]),
        "l": pa.array([[b"x", None], [], None], pa.list_(pa.binary())),
        "s": pa.array([{"k": b"x", "n": 1}, None, None], struct),
        "m": pa.array([[(b"k", 1)], [], None], pa.map_(pa.binary(), pa.int8())),
        "t": pa.array([1, 1, None], pa.timestamp("ns", "UTC")),
        "d": pa.array([1, 1, None], pa.date32()),
        "p": pa.array([1, 1, None], pa.duration("ns")),
    }
    pq.write_table(pa.table(columns), path)
    documents = config(tmp_path, "shown", text=tuple(columns), on_bad_document="reject")

    found = find(path, documents)

    first = {"b": "é", "f": 0.5, "l": ["x", None], "s": {"k": "x", "n": 1}, "m": [["k", 1]]}
    times = {"t": "1970-01-01T00:00:00.000000001+00:00", "d": "1970-01-02"}
    assert [text for *_, text in found.documents] == [
        repr({**first, **times, "p": "P0DT0H0M0.000000001S"}),
        repr(dict.fromkeys(columns)),
    ]
    assert found.rejects == [(1, 1)]


@pytest.mark.parametrize(
    ("function", "text", "found"),
    [
        ("wrong", "number", "int 5; "),
        ("wrong", "bytes", "bytes b'x'; "),
        ("wrong", "list", "int 5 among several; "),
        ("wrong", "set", r"set \{'a'\}; "),
        ("wrong", "surrogate", r"the lone surrogate '\\ud800' in a text; "),
        ("wrong", "other", r"KeyError: 'other' \(in line 18 of functions.py\); "),
        ("ends", "exit", r"SystemExit \("),
        ("ends", "status", r"SystemExit: 0 \("),
        ("ends", "silent", r"Silent \("),
        ("ends", "ascii", "UnicodeEncodeError: 'ascii' codec "),
    ],
)
def test_a_result_that_is_no_text_or_an_exception_makes_the_record_a_bad_document(
    function: str, text: str, found: str, tmp_path: Path
):
    path = write_records(tmp_path / "a.jsonl", [{"text": "tuple"}, {"text": text}])

    with pytest.raises(BadDocumentError, match=f"row 1, line 2, .* found {found}"):
        find(path, config(tmp_path, function))
    rejects = find(path, config(tmp_path, function, on_bad_document="reject")).rejects
    assert [record for _, record in rejects] == [1]


def test_what_a_function_prints_is_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = write_records(tmp_path / "a.jsonl", [{"text": "a"}, {"text": "b"}])

    find(path, config(tmp_path, "printing"))
    sys.stdout.write("after\n")

    printed = capsys.readouterr()
    assert printed.err == "called with a\ncalled with b\n"
    assert printed.out == "after\n"


def test_errors_of_a_range_name_the_record_of_the_file(tmp_path: Path):
    path = write_records(
        tmp_path / "a.jsonl", [{"text": text} for text in ("a b c", "", "d", "boom")]
    )
    within = Range(30, path.stat().st_size)

    with pytest.raises(BadDocumentError, match=r"row 3, line 4, byte .* a word that is bad") as e:
        find(path, config(tmp_path, "words"), within)

    assert e.value.row == 3
    source = DocumentSource([path], config(tmp_path, "words", limit=Limit(documents=4)))
    [batch] = source.batches()
    assert source.place(batch, 3) == (path, 2)


def test_a_text_beyond_the_limit_is_bad_and_memory_that_ends_is_not(tmp_path: Path):
    path = write_records(tmp_path / "a.jsonl", [{"text": "empty"}, {"text": "long"}])
    limit = Limit(document_bytes=100)

    with pytest.raises(BadDocumentError, match=r"row 1.* expected at most 100 bytes"):
        find(path, config(tmp_path, "wrong", limit=limit))
    with pytest.raises(MemoryError):
        find(path, config(tmp_path, "memory"))


@pytest.mark.parametrize(
    ("limit", "num", "counts"),
    [
        ({"documents": 3}, 3, (4, 3, 1)),
        ({"documents": 4}, 4, (5, 3, 1)),
        ({"characters": 3}, 3, (4, 3, 1)),
        ({"documents": 99}, 5, (8, 6, 3)),
    ],
)
def test_limits_count_the_documents_that_are_made(
    limit: dict[str, int], num: int, counts: tuple[int, int, int], tmp_path: Path
):
    texts = ["a b", " ", "d e", " ", "f", " "]
    path = write_records(tmp_path / "a.jsonl", [{"text": text} for text in texts])

    found = find(path, config(tmp_path, "words", limit=Limit(**limit)))

    assert len(found.documents) == num
    assert found.counts == counts


def test_the_source_and_the_version_decide_and_nothing_does_without_a_transform(tmp_path: Path):
    path = {tmp_path / "a.jsonl": 10}
    plain = deciding_fields(DocumentsConfig(), path)
    first = deciding_fields(config(tmp_path, "strip"), path)
    versioned = deciding_fields(config(tmp_path, "strip", transform_version=2), path)
    (tmp_path / "functions.py").write_text(SOURCE + "\n# other\n")
    edited = DocumentsConfig(transform="functions:strip").at(tmp_path, where="test")

    assert not [name for name in plain if name.startswith("transform")]
    assert first != versioned
    assert first != deciding_fields(edited, path)
    assert first != deciding_fields(config(tmp_path, "words"), path)
    assert first == deciding_fields(config(tmp_path, "strip"), path)
    with pytest.raises(TypeError, match="call `at` first"):
        deciding_fields(DocumentsConfig(transform="functions:strip"), path)

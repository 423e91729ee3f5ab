"""JSON arrays: their elements are the records that lines are in JSON lines."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokflow.documents import DocumentsConfig, Limit, Reject
from tokflow.documents.formats import columns_of
from tokflow.documents.formats.txt import cut_records
from tokflow.documents.ranges import ranges_of
from tokflow.errors import RawFileError
from tokflow_tests.reading import in_blocks, read_documents

VALUES = ['"a,]"', r'"\""', '"é"', "[]", "12.5e3", "NaN", '{"a": [1, {"b": "]"},\n2]}']
GAPS = [",", " , \n", ",,\r\n", "\n,"]


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(st.tuples(st.sampled_from(VALUES), st.sampled_from(GAPS))),
    end=st.sampled_from(["]", "\n] \n"]),
    sizes=st.lists(st.integers(1, 5)),
    max_bytes=st.sampled_from([15, 1000]),
)
def test_elements_do_not_depend_on_blocks(
    values: list[tuple[str, str]], end: str, sizes: list[int], max_bytes: int
):
    content, expected = "[ 1,", [("1", 1, 2)]
    for value, gap in values:
        place = content.count("\n") + 1, len(content.encode())
        expected.append((value if len(value) <= max_bytes else None, *place))
        content += value + gap
    found: list[tuple[str | None, int | None, int | None]] = []

    for some in cut_records(
        in_blocks((content + end).encode(), sizes), Path("a"), max_bytes=max_bytes
    ):
        lines = [None] if some.is_too_large else [line.decode() for line in some.lines]
        found += [(line, *some.place(nth)) for nth, line in enumerate(lines)]

    assert found == expected


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".jsonl"])
def test_records_of_an_array_are_those_of_json_lines(suffix: str, tmp_path: Path):
    records: list[Any] = [{"text": 'a \\" [,'}, {"text": 5}, {"text": "x" * 90}, [1], {"n": [{}]}]
    content = b"\xef\xbb\xbf\n" + json.dumps(records, indent=1).encode()
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    rejects: list[Reject] = []
    config = DocumentsConfig(on_bad_document="reject", limit=Limit(document_bytes=90))

    [batch] = read_documents(path, config, on_reject=rejects.append)

    assert (batch.texts.to_pylist(), batch.rows.tolist()) == (['a \\" [,'], [0])
    assert [(of.row, of.line) for of in rejects] == [(1, 6), (2, 9), (3, 12), (4, 15)]
    lines = content.split(b"\n")
    assert [of.byte_offset for of in rejects] == [
        len(b"\n".join(lines[: (of.line or 0) - 1])) + 2 for of in rejects
    ]
    assert rejects[3].reason.startswith("expected the key 'text', found the keys 'n'")
    assert columns_of(path, config).texts == ["text"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[{"text": "a"}', "found the end of the file in it; download"),
        ('[{"text": "a"}, {"text": "b', "found the end of the file in it; download"),
        ('[{"text": "a"}]\n[', r"found b'\[' after its end; download"),
        ('[{"text": "a"}\n}', r"line 1: expected .*, found b'}' where its \] would be; download"),
        ('[{"text": nul, "a": 1}, {}]', r"found .*nul.* \(Expecting value\); download"),
        (f'[{{"a": "{"x" * 300}', "found an element of more than 200 bytes, which"),
        (f'[{{"a": "{"x" * 300}"}}]', "found an element of more than 200 bytes, which"),
        ('{\n "text": "a"\n}', "array of records, found an object over several lines; write"),
    ],
)
def test_what_is_no_whole_array_is_an_error(content: str, said: str, tmp_path: Path):
    (tmp_path / "a.json").write_text(content)
    config = DocumentsConfig(on_bad_document="reject", limit=Limit(document_bytes=100))

    with pytest.raises(RawFileError, match=said):
        list(read_documents(tmp_path / "a.json", config))


def test_a_large_array_is_read_whole(tmp_path: Path):
    (tmp_path / "a.json").write_text(json.dumps([{"text": "a"}] * 100))

    assert ranges_of(tmp_path / "a.json", DocumentsConfig(), range_bytes=100) == ()


@pytest.mark.parametrize("first", ["[INFO] start", "[note]", "[a", "[1, 2]"])
def test_a_first_line_with_a_bracket_is_a_bad_line_and_no_array(first: str, tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(f'{first}\n{{"text": "x"}}\n')
    rejects: list[Reject] = []
    config = DocumentsConfig(on_bad_document="reject")

    [batch] = read_documents(tmp_path / "a.jsonl", config, on_reject=rejects.append)

    assert batch.texts.to_pylist() == ["x"]
    assert [of.line for of in rejects] == [1]

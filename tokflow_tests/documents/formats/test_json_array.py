"""JSON arrays: their elements are the records that lines are in JSON lines."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tokflow.documents import DocumentsConfig, Limit, Reject
from tokflow.documents.file_formats import columns_of
from tokflow.documents.formats.json_array import cut_records
from tokflow.documents.ranges import ranges_of
from tokflow.errors import RawFileError
from tokflow_tests.reading import in_blocks, read_documents

PIECES = ['"', "\\", '"a,]"', r'"\\""', "[", "]", "{", "}", ",", " ", "\n", "1", '{"a": [1, {}]}']
BLANK = " \t\r\n"


def elements_of(content: str) -> list[tuple[str, int, int]] | None:
    """Return the elements of an array, and the line and byte where each begins, found a character
    at a time; None where there is no end, another bracket for it, or something behind it."""
    found, depth, start, in_string, is_escaped = [], 0, 1, False, False
    for index, character in enumerate(content):
        if in_string:
            in_string = is_escaped or character != '"'
            is_escaped = character == "\\" and not is_escaped
            continue
        in_string = character == '"'
        depth += (character in "[{") - (character in "]}")
        if depth == 0 or (depth == 1 and character == ","):
            element = content[start:index]
            if text := element.strip(BLANK):
                offset = start + element.index(text)
                found.append((text, content.count("\n", 0, offset) + 1, offset))
            start = index + 1
        if depth == 0:
            return None if character == "}" or content[start:].strip(BLANK) else found
    return None


@settings(max_examples=150, deadline=None)
@given(
    content=st.lists(st.sampled_from(PIECES)).map("".join).map(lambda inner: f"[{inner}]"),
    sizes=st.lists(st.integers(1, 5)),
    max_bytes=st.sampled_from([6, 1000]),
)
def test_elements_do_not_depend_on_blocks(content: str, sizes: list[int], max_bytes: int):
    first, _, others = content.partition("\n")
    assume(not first.rstrip().endswith("]") or others.strip()[:1] in {"", *",[]}"})
    blocks = in_blocks(content.encode(), sizes)
    path, expected = Path("a"), elements_of(content)
    found: list[tuple[str | None, int | None, int | None]] = []

    try:
        for some in cut_records(blocks, path, max_bytes=max_bytes, byte_offset=0):
            lines = [None] if some.is_too_large else [line.decode() for line in some.lines]
            found += [(line, *some.place(nth)) for nth, line in enumerate(lines)]
    except RawFileError:
        assert expected is None
        return

    assert expected is not None
    assert found == [
        (text if len(text) <= max_bytes else None, line, offset) for text, line, offset in expected
    ]


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".jsonl"])
def test_records_of_an_array_are_those_of_json_lines(suffix: str, tmp_path: Path):
    records: list[Any] = [{"text": 'a \\" [,'}, {"text": 5}, {"text": "x" * 90}, [1], {"n": [{}]}]
    content = b"\xef\xbb\xbf\n" + json.dumps(records, indent=1).encode()
    content = content.replace(b'"n"', b'"m": nul, "n"')
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
    assert rejects[3].reason.startswith("expected a JSON object, found b'{")
    assert columns_of(path, config).texts == ["text"]


@pytest.mark.parametrize("num_blank", [1, 60])
def test_white_space_around_an_element_is_none_of_its_bytes(num_blank: int, tmp_path: Path):
    blank, element = "\n" * num_blank, '{"text": "abc"}'
    (tmp_path / "a.json").write_text(blank + blank.join(["[", element, ",", element, "]"]) + blank)
    config = DocumentsConfig(limit=Limit(document_bytes=len(element)))

    batches = list(read_documents(tmp_path / "a.json", config))

    assert [text for batch in batches for text in batch.texts.to_pylist()] == ["abc", "abc"]


@pytest.mark.parametrize("content", ["[]", " [ ]\n", '[{"text": "a"},]', '\n[ {"text": "a"} ] \n'])
def test_white_space_and_commas_without_a_record_take_no_row(content: str, tmp_path: Path):
    (tmp_path / "a.json").write_text(content)

    batches = list(read_documents(tmp_path / "a.json", DocumentsConfig()))

    assert [t for b in batches for t in b.texts.to_pylist()] == ["a"] * content.count("text")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[{"text": "a"}', "found the end of the file in it; download"),
        ('[{"text": "a"}, {"text": "b', "found the end of the file in it; download"),
        ('[{"text": "a"}]\n[', r"found b'\[' after its end; download"),
        ('[{"text": "a"}\n}', r"line 2: expected .*, found b'}' where its \] would be; download"),
        ('{\n "text": "a"\n}', "array of records, found an object over several lines; write"),
    ],
)
def test_what_is_no_whole_array_is_an_error(content: str, said: str, tmp_path: Path):
    (tmp_path / "a.json").write_text(content)

    with pytest.raises(RawFileError, match=said):
        list(read_documents(tmp_path / "a.json", DocumentsConfig(on_bad_document="reject")))


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

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from tokflow.documents import DocumentsConfig, Limit, Reject
from tokflow.documents.decoding import zstd
from tokflow.errors import ConfigError
from tokflow_tests.reading import read, rows_in, texts_in

# Limits


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (Limit(documents=1), ["aa"]),
        (Limit(documents=2), ["aa", "bbb"]),
        (Limit(characters=1), ["aa"]),
        (Limit(characters=2), ["aa"]),
        (Limit(characters=3), ["aa", "bbb"]),
        (Limit(characters=5), ["aa", "bbb"]),
        (Limit(documents=1, characters=5), ["aa"]),
        (Limit(documents=2, characters=1), ["aa"]),
        (Limit(documents=2, tokens=1), ["aa", "bbb"]),  # which are not made here
    ],
)
@pytest.mark.parametrize("batch_bytes", [1, 1000])
def test_reading_stops_after_the_document_that_reaches_the_limit(
    limit: Limit, expected: list[str], batch_bytes: int, tmp_path: Path
):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "aa"}\n{"text": "bbb"}\n{malformed\n')

    batches = read(path, DocumentsConfig(limit=limit), batch_bytes=batch_bytes)

    assert texts_in(batches) == expected


def test_documents_that_are_empty_are_read_and_count_only_if_they_are_to(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "{text}"}}\n' for text in ["", "aa", "", "bb", "", "cc"]))

    def texts(**limit) -> list[str]:
        return texts_in(read(path, DocumentsConfig(limit=Limit(**limit))))

    assert texts(documents=3) == ["", "aa", ""]
    assert texts(documents=2, count_empty=False) == ["", "aa", "", "bb"]
    refused = r"count_empty: expected true, or a limit of documents, .* found false;"
    with pytest.raises(ConfigError, match=refused):
        Limit(characters=9, count_empty=False)


@pytest.mark.parametrize("limit", [Limit(documents=8_000), Limit(characters=8_000)])
def test_a_limit_counts_over_batches_and_not_the_rejects(limit: Limit, tmp_path: Path):
    path = tmp_path / "a.jsonl"
    lines = ['{"text": "é"}\n', "{}\n"] * 10_000  # several blocks of 64 KiB
    path.write_text("".join(lines))
    rejects: list[Reject] = []
    config = DocumentsConfig(limit=limit, on_bad_document="reject", max_rejects=10**6)

    batches = read(path, config, batch_bytes=1000, on_reject=rejects.append)

    assert rows_in(batches) == list(range(0, 16_000, 2))
    assert [reject.row for reject in rejects] == list(range(1, 15_999, 2))


def test_a_limit_costs_no_reading_of_what_comes_after(tmp_path: Path):
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstd.compress(b"a line\n" * 100_000)[:-10] + b"damaged!!!")
    config = DocumentsConfig(document_per="line", limit=Limit(documents=5))

    assert texts_in(read(path, config, batch_bytes=1000)) == ["a line"] * 5


# Rejects


# Documents that are too large


@pytest.mark.parametrize(
    ("name", "before", "bomb", "per"),
    [
        ("a.jsonl.gz", b'{"text": "', b"x", "file"),
        ("a.txt.gz", b"", b"x", "file"),
        ("a.txt.gz", b"", b"x", "line"),
        ("a.csv.gz", b"text\n", b"x", "file"),
        ("a.csv.gz", b"text\n", b",", "file"),
        ("a.csv.gz", b"text\n", b'"",', "file"),
        ("a.tsv.gz", b'text\n"', b'""', "file"),
    ],
)
def test_a_document_that_is_too_large_is_passed_over_in_little_memory(
    name: str, before: bytes, bomb: bytes, per: str, tmp_path: Path
):
    path = tmp_path / name
    member = gzip.compress(bomb * (1_000_000 // len(bomb)), 1)
    path.write_bytes(gzip.compress(before, 1) + member * 10)
    limit = Limit(document_bytes=500_000)
    config = DocumentsConfig(document_per=per, limit=limit, on_bad_document="reject")
    rejects: list[Reject] = []
    tracemalloc.start()

    assert read(path, config, on_reject=rejects.append) == []
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert [reject.reason.split(", found")[1][:5] for reject in rejects] == [" more"]
    assert peak_bytes < 8_000_000


def test_a_document_as_large_as_may_be_is_read_whatever_the_blocks(tmp_path: Path):
    text = "x" * 100_000  # more than a block
    files = {
        "a.jsonl": (len('{"text": ""}') + 100_000, json.dumps({"text": text})),
        "a.csv": (102_000, f'text\n"{text}{"1" * 1_998}"'),
        "a.txt": (100_000, text),
    }
    for name, (num_bytes, content) in files.items():
        (tmp_path / name).write_text(content)
        for most, expected in ((num_bytes, 1), (num_bytes - 1, 0)):
            config = DocumentsConfig(limit=Limit(document_bytes=most), on_bad_document="reject")

            assert len(texts_in(read(tmp_path / name, config, batch_bytes=1))) == expected, name

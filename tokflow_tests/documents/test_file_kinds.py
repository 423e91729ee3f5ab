"""A raw file that is none of the formats is named, in place of what is wrong with its text."""

import gzip
import io
import pickle
import sqlite3
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.documents import DocumentsConfig
from tokflow.errors import RawFileError
from tokflow_tests.reading import read_documents


def _zip() -> bytes:
    with zipfile.ZipFile(buffer := io.BytesIO(), "w") as file:
        file.writestr("a.jsonl", '{"text": "a"}')
    return buffer.getvalue()


def _tar() -> bytes:
    with tarfile.open(fileobj=(buffer := io.BytesIO()), mode="w") as file:
        file.addfile(tarfile.TarInfo("a.jsonl"))
    return buffer.getvalue()


def _sqlite() -> bytes:
    database = sqlite3.connect(":memory:")
    database.execute("create table a (text)")
    return database.serialize()


def _parquet() -> bytes:
    pq.write_table(pa.table({"text": ["a"]}), buffer := io.BytesIO())
    return buffer.getvalue()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
KINDS = {
    "a zip archive": _zip(),
    "a tar archive": _tar(),
    "a Python pickle": pickle.dumps(["a"]),
    "a SQLite database": _sqlite(),
    "a PDF document": b"%PDF-1.7\n",
    "a parquet file": _parquet(),
    "xz": b"\xfd7zXZ\x00\x00",
    "gzip": gzip.compress(gzip.compress(b"a")),  # under a plain name, and once more
    "a pointer of Git LFS": LFS,
    "a page of HTML": b"\n<!DOCTYPE html>\n<html><body>Not found</body></html>",
}


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt", "a.parquet", "a.arrow"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_kind_is_named(kind: str, name: str, tmp_path: Path):
    if (kind, name) in (("a page of HTML", "a.txt"), ("a parquet file", "a.parquet")):
        pytest.skip("text, or read")
    (tmp_path / name).write_bytes(KINDS[kind])
    found = "an Arrow file that" if (kind, name) == ("a parquet file", "a.arrow") else kind

    with pytest.raises(RawFileError) as caught:
        list(read_documents(tmp_path / name, DocumentsConfig(on_bad_document="reject")))

    error = caught.value
    if found == kind:
        assert error.found.startswith(kind)
        assert "fix the" not in error.remedy


def test_a_page_of_html_is_text(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(KINDS["a page of HTML"])

    [batch] = read_documents(tmp_path / "a.txt", DocumentsConfig())

    assert batch.texts.to_pylist() == [KINDS["a page of HTML"].decode()]

import bz2
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokflow.documents import DocumentsConfig
from tokflow.documents.decoding import read_blocks, zstd
from tokflow.documents.ranges import ranges_of
from tokflow.errors import ConfigError, RawFileError
from tokflow.raw.globs import COMPRESSED_SUFFIXES
from tokflow_tests.reading import read_documents, texts_of

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".zst": lambda data: zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1}),
    ".zstd": zstd.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".lz4": lambda data: pa.Codec("lz4").compress(data, asbytes=True),
}
WITH_CHECKSUMS = [suffix for suffix in COMPRESS if suffix not in (".zstd", ".lz4")]

TEXTS = [f"document {row} é\x00" for row in range(3000)]


def content_of(suffix: str) -> bytes:
    if suffix == ".jsonl":
        return "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    start, header = {".txt": ("", ""), ".tsv": ("1\t", "id\ttext\n")}.get(
        suffix, ("1,", "id,text\n")
    )
    return (header + "".join(f"{start}{text}\n" for text in TEXTS)).encode()


def config_of(suffix: str) -> DocumentsConfig:
    return DocumentsConfig(document_per="line" if suffix == ".txt" else "file")


def test_every_compression_has_a_case():
    assert tuple(COMPRESS) == COMPRESSED_SUFFIXES


@pytest.mark.parametrize("outer", COMPRESS)
@pytest.mark.parametrize("inner", [".jsonl", ".csv", ".tsv", ".txt"])
def test_a_compressed_file_has_the_documents_of_the_plain_one(
    inner: str, outer: str, tmp_path: Path
):
    path = tmp_path / f"a{inner}{outer}"
    path.write_bytes(COMPRESS[outer](content_of(inner)))

    assert texts_of(path, config_of(inner), batch_bytes=10_000) == TEXTS


@pytest.mark.parametrize("block_bytes", [1, 10**6])
@pytest.mark.parametrize("suffix", COMPRESS)
def test_streams_end_to_end_are_one_file(suffix: str, block_bytes: int, tmp_path: Path):
    path = tmp_path / f"a{suffix}"
    compress = COMPRESS[suffix]
    path.write_bytes(compress(b"first,") + compress(b"") + compress(b"second" * 1000))

    blocks = list(read_blocks(path, block_bytes=block_bytes))

    assert b"".join(blocks) == b"first," + b"second" * 1000
    assert 0 < max(map(len, blocks)) <= block_bytes


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_zero_bytes_may_stand_between_streams(suffix: str, tmp_path: Path):
    path = tmp_path / f"a{suffix}"
    compress = COMPRESS[suffix]
    path.write_bytes(compress(b"a") + b"\0" * 400_000 + compress(b"b") + b"\0" * 4)

    assert b"".join(read_blocks(path, block_bytes=100)) == b"ab"


def test_a_zstd_window_of_2_gib_is_read(tmp_path: Path):
    path = tmp_path / "a.zst"
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 31})
    path.write_bytes(compressor.compress(b"text") + compressor.flush())

    assert b"".join(read_blocks(path, block_bytes=100)) == b"text"


@pytest.mark.parametrize("kept", [0, 5, 0.5, -1])
@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_stream_that_is_cut_short_is_an_error(suffix: str, kept: float, tmp_path: Path):
    path = tmp_path / f"a.jsonl{suffix}"
    whole = COMPRESS[suffix](content_of(".jsonl"))
    path.write_bytes(whole[: int(kept * len(whole)) if kept == 0.5 else int(kept)])

    with pytest.raises(RawFileError) as caught:
        texts_of(path, DocumentsConfig())

    assert "found a stream that is cut short;" in str(caught.value)


@pytest.mark.parametrize("after", [b"junk that is no stream", None], ids=["junk", "half a stream"])
@pytest.mark.parametrize("suffix", COMPRESS)
def test_what_follows_a_stream_is_never_dropped_silently(
    suffix: str, after: bytes | None, tmp_path: Path
):
    path = tmp_path / f"a.jsonl{suffix}"
    whole = COMPRESS[suffix](content_of(".jsonl"))
    path.write_bytes(whole + (after or whole[:-9]))

    with pytest.raises(RawFileError, match="expected whole"):
        texts_of(path, DocumentsConfig())


@pytest.mark.parametrize("suffix", WITH_CHECKSUMS)
def test_a_damaged_stream_is_an_error(suffix: str, tmp_path: Path):
    path = tmp_path / f"a.jsonl{suffix}"
    damaged = bytearray(COMPRESS[suffix](content_of(".jsonl")))
    damaged[len(damaged) // 2] ^= 0xFF
    path.write_bytes(damaged)

    with pytest.raises(RawFileError, match="expected whole"):
        list(read_blocks(path, block_bytes=1000))


@pytest.mark.parametrize("name", ["a.parquet.gz", "a.arrow.zst"])
def test_parquet_and_arrow_are_not_compressed_outside(name: str, tmp_path: Path):
    with pytest.raises(ConfigError, match="which compresses inside"):
        next(read_documents(tmp_path / name, DocumentsConfig()))


@pytest.mark.parametrize("compression", [".gz", ".zst"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt"])
def test_gzip_and_zstd_under_a_plain_name_are_read(name: str, compression: str, tmp_path: Path):
    path = tmp_path / name
    path.write_bytes(COMPRESS[compression](content_of(path.suffix)))

    assert texts_of(path, config_of(path.suffix)) == TEXTS
    assert ranges_of(path, config_of(path.suffix), range_bytes=100) == ()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(RawFileError, match=f"whole {compression} streams .* cut short"):
        texts_of(path, config_of(path.suffix))


# Files of another kind are named, in place of what is wrong with their text


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


NAMES = ("a.jsonl", "a.csv", "a.txt", "a.parquet", "a.arrow")
UNNAMED = {
    ("a page of HTML", "a.txt"),  # text, as any
    ("a parquet file", "a.parquet"),
    ("a parquet file", "a.arrow"),  # said to be a damaged one
}


@pytest.mark.parametrize(
    ("kind", "name"), [of for of in product(KINDS, NAMES) if of not in UNNAMED]
)
def test_a_file_of_another_kind_is_named(kind: str, name: str, tmp_path: Path):
    (tmp_path / name).write_bytes(KINDS[kind])

    with pytest.raises(RawFileError) as caught:
        texts_of(tmp_path / name, DocumentsConfig(on_bad_document="reject"))

    assert caught.value.found.startswith(kind)
    assert "fix the" not in caught.value.remedy


def test_a_page_of_html_is_text(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(KINDS["a page of HTML"])

    assert texts_of(tmp_path / "a.txt") == [KINDS["a page of HTML"].decode()]

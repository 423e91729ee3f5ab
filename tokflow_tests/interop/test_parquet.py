"""`datasets` reads our parquet, and makes the same tokens of the same documents."""

from pathlib import Path

import numpy as np
import pytest

from tokflow.exports import Export
from tokflow_tests.interop.harness import BYTES, Known, known_dataset, read_with, write_with
from tokflow_tests.interop.row_columns import COLUMNS, PARTS, assert_columns, flat

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("ids", "compression"), [("many", "zstd"), ("bytes", "snappy"), ("bytes", "none")]
)
def test_the_folder_alone_is_a_dataset_of_both_parts(
    ids: str, compression: str, part: str, tmp_path: Path
):
    known = known_dataset(
        tmp_path, "parquet", ids=ids, compression=compression, sequences_per_file=5
    )

    found = read_with("datasets", known.folder, part, how="folder")

    assert found["parts"].tolist() == list(PARTS)
    assert_columns(found, flat(known, part), COLUMNS)


@pytest.mark.parametrize("part", PARTS)
def test_the_builder_of_parquet_finds_the_parts_in_the_folder(part: str, tmp_path: Path):
    known = known_dataset(tmp_path, "parquet", sequences_per_group=3)

    found = read_with("datasets", known.folder, part, how="parquet")

    assert found["parts"].tolist() == list(PARTS)
    assert_columns(found, flat(known, part), COLUMNS)


def test_files_are_named_where_parts_begin_alike(tmp_path: Path):
    split = {"parts": {"train": {"files": "train-*"}, "train-b": {"files": "validation-*"}}}
    known = known_dataset(tmp_path, "parquet", attributes={"split": split})

    files = {"train": "train-[0-9]*", "train_b": "train-b-[0-9]*"}
    train, train_b = (
        read_with("datasets", known.folder, part, how="parquet", files=files) for part in files
    )

    assert_columns(train, flat(known, "train"), COLUMNS)
    assert_columns(train_b, flat(known, "validation"), COLUMNS)


def texts_of(files: dict[str, list[str]], part: str) -> list[str]:
    return [text for name in sorted(files) if name.startswith(part) for text in files[name]]


def map_texts(texts: list[str], folder: Path, **options: str) -> None:
    data = [text.encode() for text in texts]
    utf8 = np.frombuffer(b"".join(data), dtype=np.uint8)
    edges = np.cumsum([0, *map(len, data)])
    arrays = {"utf8": utf8, "edges": edges}
    write_with("datasets", [], folder, arrays=arrays, how="map", **options)


def tokens_in_bin(known: Known, part: str) -> list[int]:
    arrays = Export(known.folder, known.manifest).read(part)
    return [token for fields in arrays for token in fields["token_ids"].tolist()]


def tokens_in_rows(known: Known, part: str) -> list[int]:
    """Return the tokens of the rows, padding left out, of a dataset with one file per part."""
    arrays = Export(known.folder, known.manifest).read(part)
    rows = [fields["token_ids"][fields["segment_ids"] != 0] for fields in arrays]
    return np.concatenate(rows).tolist()


@pytest.mark.parametrize("part", PARTS)
def test_map_of_bytes_gives_the_tokens_of_bin_and_parquet(part: str, tmp_path: Path):
    files = {f"{part}-0.jsonl": texts_of(BYTES, part) for part in PARTS}
    texts = files[f"{part}-0.jsonl"]
    stream = known_dataset(tmp_path / "bin", "bin", files=files)
    rows = known_dataset(tmp_path / "parquet", "parquet", files=files)

    map_texts(texts, tmp_path / "mapped")

    mapped = np.load(tmp_path / "mapped/token_ids.npy").tolist()
    assert tokens_in_bin(stream, part) == mapped
    assert tokens_in_rows(rows, part) == mapped
    assert np.load(tmp_path / "mapped/offsets.npy").tolist() == stream.offsets(part).tolist()


def test_map_of_tiktoken_gives_the_tokens_of_bin_and_parquet(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared / "tiktoken-cache"))
    text = (shared / "corpora/wikitext2-valid.txt").read_text()[:300_000]
    texts = [*text.split("\n"), *texts_of(BYTES, "train"), "spelt out: <|endoftext|>"]
    files = {"train-0.jsonl": texts, "validation-0.jsonl": ["z"]}
    attributes = {"tokenizer": {"kind": "tiktoken", "name": "gpt2"}}
    stream, rows = (
        known_dataset(
            tmp_path / name, name, files=files, attributes=attributes, sequence_length=256
        )
        for name in ("bin", "parquet")
    )

    map_texts(texts, tmp_path / "mapped", encoding="gpt2")

    mapped = np.load(tmp_path / "mapped/token_ids.npy").tolist()
    assert len(mapped) > 50_000
    assert tokens_in_bin(stream, "train") == mapped
    assert tokens_in_rows(rows, "train") == mapped

"""`datasets` finds parts that begin alike or have a dash, and makes the same tokens by `map`; it,
DuckDB and polars take a pattern for the rows alone.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.exports import Export
from tokflow_tests.interop.harness import (
    BYTES,
    PARTS,
    Known,
    assert_same,
    known_dataset,
    python_of,
    read_with,
    write_with,
)
from tokflow_tests.outputs import stored

pytestmark = pytest.mark.interop


def known_parts(folder: Path, format_: str, validation: str) -> Known:
    """Return a known dataset whose part validation is called otherwise."""
    parts = {"train": {"files": "train-*"}, validation: {"files": "validation-*"}}
    return known_dataset(folder, format_, attributes={"split": {"parts": parts}})


def test_a_part_with_a_dash_is_loaded_too(tmp_path: Path):
    known = known_parts(tmp_path, "hf_dataset", "validation-b")

    found = read_with("datasets", known.folder, "validation-b")

    assert found["input_ids"].tolist() == known.columns("validation")["input_ids"].tolist()


def test_files_are_named_where_parts_begin_alike(tmp_path: Path):
    known = known_parts(tmp_path, "parquet", "train-b")

    files = {"train": "train-[0-9]*", "train_b": "train-b-[0-9]*"}
    for part, expected in zip(files, PARTS, strict=True):
        found = read_with("datasets", known.folder, part, how="parquet", files=files)

        assert found["input_ids"].tolist() == known.columns(expected)["input_ids"].tolist()


PATTERNS = {
    "parquet": ("*.parquet", ["parquet", "duckdb", "polars"]),
    "easydel": ("[!_]*/*.parquet", ["parquet", "duckdb", "polars"]),
    "arrow": ("*.arrow", ["arrow", "polars"]),
    "jsonl": ("*.jsonl", ["json", "duckdb", "polars"]),
    "hf_dataset": ("*/*.arrow", ["arrow"]),
}
"""The pattern of all parts of a format, and what takes it: datasets by the name of a builder."""


@pytest.mark.parametrize("format_", PATTERNS)
def test_a_pattern_takes_the_rows_of_all_parts_and_nothing_of_tokflow(format_: str, tmp_path: Path):
    python_of("datasets")
    known = known_dataset(tmp_path, format_)
    lists = [name + end for name in ("input_ids", "segment_ids") for end in ("", ".lengths")]
    columns = [known.columns(part) for part in PARTS]
    expected = {name: np.concatenate([of[name] for of in columns]) for name in lists}

    pattern, readers = PATTERNS[format_]
    for how in readers:
        found = read_with("datasets", known.folder, "train", how=how, files={"train": pattern})

        assert_same(found, expected)


def texts_of(part: str) -> list[str]:
    return [text for name in sorted(BYTES) if name.startswith(part) for text in BYTES[name]]


def assert_map_gives_the_same(texts: list[str], folder: Path, encoding: str | None = None) -> int:
    """Compare what `map` makes of texts with bin and parquet; return the number of tokens."""
    python_of("datasets")
    options: dict[str, Any] = {"files": {"train-0.jsonl": texts, "validation-0.jsonl": ["z"]}}
    if encoding is not None:
        options["attributes"] = {"tokenizer": {"kind": "tiktoken", "name": encoding}}
    stream = known_dataset(folder / "bin", "bin", **options)
    rows = known_dataset(folder / "parquet", "parquet", sequence_length=256, **options)
    data = [text.encode() for text in texts]
    arrays = {
        "utf8": np.frombuffer(b"".join(data), dtype=np.uint8),
        "edges": np.cumsum([0, *map(len, data)]),
    }

    write_with("datasets", [], folder, arrays=arrays, how="map", encoding=encoding)

    mapped = np.load(folder / "token_ids.npy").tolist()
    [streamed] = Export(stored(stream.folder, stream.manifest)).read("train")
    [packed] = Export(stored(rows.folder, rows.manifest)).read("train")
    assert streamed["token_ids"].tolist() == mapped
    assert packed["token_ids"][packed["segment_ids"] != 0].tolist() == mapped
    return len(mapped)


def test_map_of_bytes_gives_the_tokens_of_bin_and_parquet(tmp_path: Path):
    for part in PARTS:
        (folder := tmp_path / part).mkdir()
        assert assert_map_gives_the_same(texts_of(part), folder) > 10


def test_map_of_tiktoken_gives_the_tokens_of_bin_and_parquet(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared / "tiktoken-cache"))
    text = (shared / "corpora/wikitext2-valid.txt").read_text()[:300_000]
    texts = [*text.split("\n"), *texts_of("train"), "spelt out: <|endoftext|>"]

    assert assert_map_gives_the_same(texts, tmp_path, "gpt2") > 50_000

import json
import struct
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tokflow.pipeline.run import build_dataset
from tokflow_tests.exports.exporting import export_as
from tokflow_tests.outputs import content
from tokflow_tests.tiny import declare

NO_EOS = {"tokenizer": {"kind": "bytes", "eos": "none"}}

export = partial(export_as, "litdata")


def items_of(data: bytes) -> list[bytes]:
    (num,) = struct.unpack_from("<I", data)
    offsets = struct.unpack_from(f"<{num + 1}I", data, 4)
    assert offsets[0] == 4 * (num + 2)
    assert offsets[-1] == len(data)
    return [data[start:stop] for start, stop in pairwise(offsets)]


def as_items(*texts: str) -> list[bytes]:
    """Return the items of texts of which `$` stands for EOS."""
    return [b"".join(b"\0\1" if c == "$" else c.encode() + b"\0" for c in text) for text in texts]


def chunks_of(folder: Path, part: str = "train") -> list[list[bytes]]:
    index = json.loads((folder / part / "index.json").read_text())
    return [items_of((folder / part / chunk["filename"]).read_bytes()) for chunk in index["chunks"]]


def test_a_part_is_a_folder_of_chunks_and_an_index(tmp_path: Path):
    folder, _ = export(tmp_path, {"a.jsonl": ["ab", "", "c"]})

    assert sorted(content(folder)) == [
        "_tokflow/index.parquet",
        "_tokflow/manifest.json",
        "train/chunk-0-0.bin",
        "train/index.json",
    ]
    data = (folder / "train/chunk-0-0.bin").read_bytes()
    assert data == struct.pack("<5I", 3, 20, 26, 28, 32) + b"a\0b\0\0\1\0\1c\0\0\1"
    index = json.loads((folder / "train/index.json").read_text())
    assert len(index.pop("updated_at")) == 32
    assert index == {
        "chunks": [{"chunk_bytes": 32, "chunk_size": 3, "dim": 6, "filename": "chunk-0-0.bin"}],
        "config": {
            "chunk_bytes": None,
            "chunk_size": 32_000_000 // 2049 * 2049,
            "compression": None,
            "compression_batch_size": None,
            "compression_level": None,
            "data_format": ["no_header_tensor:20"],
            "data_spec": '[1, {"type": null, "context": null, "children_spec": []}]',
            "encryption": None,
            "ipc_compression": None,
            "item_loader": "TokensLoader",
            "types": "tensor",
        },
    }


@pytest.mark.parametrize(
    ("files", "options", "expected"),
    [
        (
            {"a.jsonl": ["abc", "d"], "b.jsonl": ["efghijk", "l"]},
            {"block_size": 3, "shard_size": 14},
            [as_items("abc$", "d$"), as_items("efghij"), as_items("k$", "l$")],
        ),
        (  # a document fills a chunk
            {"a.jsonl": ["abc", "def"]},
            {"block_size": 4, "shard_size": 8},
            [as_items("abc$"), as_items("def$")],
        ),
        (  # a block is larger than a chunk should be
            {"a.jsonl": ["abcdefgh"]},
            {"block_size": 5, "shard_size": 1},
            [as_items("abcde"), as_items("fgh$")],
        ),
        (
            {"a.jsonl": ["abcdefghijklmnop"]},
            {"block_size": 4, "shards": 3},
            [as_items("abcdefgh"), as_items("ijklmnop"), as_items("$")],
        ),
    ],
)
def test_chunks_hold_whole_blocks_and_the_last_one_the_rest(
    files: dict[str, list[str]], options: dict[str, int], expected: list, tmp_path: Path
):
    folder, _ = export(tmp_path, files, **options)

    assert chunks_of(folder) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (2, [as_items("ab"), as_items("cd"), as_items("e")]),
        (3, [as_items("ab", "c"), as_items("d", "e")]),
        (9, [as_items("ab", "cd", "e")]),
    ],
)
def test_documents_without_tokens_are_no_items(size: int, expected: list, tmp_path: Path):
    files = {"a.jsonl": ["", "ab", "", "", "cd", ""], "b.jsonl": ["", "e"]}
    folder, _ = export(tmp_path, files, attributes=NO_EOS, block_size=1, shard_size=2 * size)

    assert chunks_of(folder) == expected


def test_the_index_tells_chunks_of_the_same_sizes_apart(tmp_path: Path):
    texts = {"first": "ab", "same": "ab", "other": "ac"}

    updated = {}
    for name, text in texts.items():
        folder, _ = export(tmp_path / name, {"a.jsonl": [text]})
        updated[name] = json.loads((folder / "train/index.json").read_text())["updated_at"]

    assert updated["first"] == updated["same"] != updated["other"]


def test_a_chunk_past_4_gib_is_refused_with_the_option_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.exports.formats.litdata.MAX_CHUNK_BYTES", 100)
    exports = [{"format": "litdata", "block_size": 1, "shard_size": 92}]
    fits = declare(tmp_path / "fits", {"a.jsonl": ["x" * 43]}, exports=exports)
    too_large = declare(tmp_path / "large", {"a.jsonl": ["x" * 44]}, exports=exports)

    [failed] = build_dataset(too_large).failed

    assert not build_dataset(fits).failed
    assert str(failed.explained) == (
        "exports: litdata: expected chunks of at most 100 bytes, which uint32 counts, found one "
        "of 102 bytes; lower `shard_size`, or lower `block_size` if a block is longer than that"
    )

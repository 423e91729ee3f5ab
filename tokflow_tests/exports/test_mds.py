import hashlib
import json
import struct
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import xxhash

from tokflow.errors import ConfigError
from tokflow.pipeline.run import build_dataset
from tokflow_tests.exports.exporting import export_as
from tokflow_tests.tiny import EOS, declare

TOKENS = {"tokens": "token_ids"}

export = partial(export_as, "mds", columns=TOKENS)


def shards_of(folder: Path, part: str = "train") -> list[dict[str, Any]]:
    return json.loads((folder / part / "index.json").read_text())["shards"]


def test_a_shard_is_offsets_settings_and_rows(tmp_path: Path):
    folder, _ = export(tmp_path, {"a.jsonl": ["ab", "c"]})

    data = (folder / "train/shard.00000.mds").read_bytes()

    settings = {
        "column_encodings": ["ndarray:int32:4"],
        "column_names": ["tokens"],
        "column_sizes": [16],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": 67_108_864,
        "version": 2,
    }
    text = json.dumps(settings).encode()
    first = 16 + len(text)
    assert data[:first] == struct.pack("<4I", 2, first, first + 16, first + 32) + text
    assert data[first:] == struct.pack("<8i", *b"ab", EOS, *b"c", EOS, EOS, EOS, EOS)
    raw = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}
    index = json.loads((folder / "train/index.json").read_text())
    shard = {**settings, "raw_data": raw, "samples": 2, "zip_data": None}
    assert index == {"shards": [shard], "version": 2}


def test_a_shard_holds_as_many_rows_as_its_limit_has_room_for(tmp_path: Path):
    files = {"a.jsonl": ["x" * 35]}
    folder, _ = export(tmp_path / "first", files, shard_size=250)
    [first, *_] = shards_of(folder)
    exact = first["raw_data"]["bytes"]

    sizes = {}
    for limit in (exact, exact - 1, exact + 19, exact + 20):
        folder, _ = export(tmp_path / str(limit), files, shard_size=limit)
        sizes[limit - exact] = [shard["samples"] for shard in shards_of(folder)]

    assert first["samples"] == 3
    assert sizes == {0: [3, 3, 3], -1: [2, 2, 2, 2, 1], 19: [3, 3, 3], 20: [4, 4, 1]}


def test_hashes_are_those_of_the_file(tmp_path: Path):
    hashes = ["xxh64", "sha1", "sha1", "blake2b"]
    folder, _ = export(tmp_path, {"a.jsonl": ["ab"]}, hashes=hashes)

    [shard] = shards_of(folder)

    data = (folder / "train/shard.00000.mds").read_bytes()
    assert shard["hashes"] == ["blake2b", "sha1", "xxh64"]
    assert shard["raw_data"]["hashes"] == {
        "blake2b": hashlib.blake2b(data).hexdigest(),
        "sha1": hashlib.sha1(data).hexdigest(),
        "xxh64": xxhash.xxh64(data).hexdigest(),
    }


def test_a_row_that_no_shard_has_room_for_is_refused(tmp_path: Path):
    exports = [{"format": "mds", "columns": TOKENS, "shard_size": 200}]

    with pytest.raises(ConfigError) as raised:
        declare(tmp_path, {"a.jsonl": ["ab"]}, exports=exports)

    assert (raised.value.where, raised.value.found) == ("test: exports: mds: shard_size", "200")
    exports[0]["shard_size"] = 204
    assert not build_dataset(declare(tmp_path, {}, exports=exports)).failed

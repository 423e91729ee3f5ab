"""Formats of sequences: what stands in their files, and what readers that know nothing of tokflow
find in them."""

import gzip
import hashlib
import json
import pickle
import random
import struct
import tarfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import xxhash
from backports import zstd

from tokflow.errors import ConfigError
from tokflow.exports.formats.parquet import CODECS, parquet_file
from tokflow.pipeline.run import build_dataset
from tokflow_tests.chats import CHATS, chat_dataset
from tokflow_tests.exports.exporting import export, export_as, files_of
from tokflow_tests.tiny import EOS, declare

ROWS = [[*b"ab", EOS, *b"c"], [EOS] * 4]
COLUMNS = {
    "input_ids": ROWS,
    "attention_mask": [[1, 1, 1, 1], [1, 0, 0, 0]],
    "segment_ids": [[1, 1, 1, 2], [1, 0, 0, 0]],
    "position_ids": [[0, 1, 2, 0], [0, 0, 0, 0]],
}
LIST = {"feature": {"dtype": "int32", "_type": "Value"}, "_type": "List"}
FEATURES = dict.fromkeys(COLUMNS, LIST) | {
    "attention_mask": {"feature": {"dtype": "int8", "_type": "Value"}, "_type": "List"}
}
MDS = {
    "column_encodings": ["ndarray:int32:4"],
    "column_names": ["tokens"],
    "column_sizes": [16],
    "compression": None,
    "format": "mds",
    "hashes": [],
    "size_limit": 67_108_864,
    "version": 2,
}


def _mds(rows: list[list[int]]) -> dict[str, Any]:
    text = json.dumps(MDS).encode()
    first = 16 + len(text)
    head = struct.pack("<4I", 2, first, first + 16, first + 32) + text
    data = head + b"".join(struct.pack("<4i", *row) for row in rows)
    raw = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}
    shard = {**MDS, "raw_data": raw, "samples": 2, "zip_data": None}
    return {
        "train/shard.00000.mds": data,
        "train/index.json": {"shards": [shard], "version": 2},
    }


CASES: dict[str, dict[str, Any]] = {
    "arrow": {"train-00000-of-00001.arrow": COLUMNS},
    "easydel": {"train/shard-00000.parquet": COLUMNS},
    "hf_dataset": {
        "dataset_dict.json": {"splits": ["train"]},
        "train/data-00000-of-00001.arrow": COLUMNS,
        "train/dataset_info.json": {
            "citation": "", "description": "", "features": FEATURES, "homepage": "", "license": "",
        },
        "train/state.json": {
            "_data_files": [{"filename": "data-00000-of-00001.arrow"}],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": "train",
        },
    },
    "jsonl": {
        "train-00000-of-00001.jsonl": b'{"input_ids":[97,98,256,99],"segment_ids":[1,1,1,2]}\n'
        b'{"input_ids":[256,256,256,256],"segment_ids":[1,0,0,0]}\n'
    },
    "mds": _mds(ROWS),
    "parquet": {"train-00000-of-00001.parquet": COLUMNS},
    "pickle": {
        "train/dump-0.pkl": ROWS,
        "train/dump-meta_data.json": {"dump-0.pkl": {"num_samples": 2, "num_tokens": 8}},
    },
    "webdataset": {
        "train/manifest.jsonl": b'{"num_sequences":2,"shard":"shard_00000000"}\n',
        "train/shard_00000000.tar": [b"[97,98,256,99]", b"[256,256,256,256]"],
    },
}  # fmt: skip
"""The files of each format: JSON, pickles, tables, and members of a tar are loaded."""


def _table(data: bytes) -> pa.Table:
    if data.startswith(b"PAR1"):
        return pq.read_table(BytesIO(data))
    ipc = pa.ipc.open_file if data.startswith(b"ARROW1") else pa.ipc.open_stream
    return ipc(data).read_all()


def _columns(data: bytes) -> dict[str, list[Any]]:
    table = _table(data)
    types = [str(field.type.value_type) for field in table.schema]
    assert types == ["int32", "int8", "int32", "int32"]
    return table.to_pydict()


def _members(data: bytes) -> list[bytes]:
    with tarfile.open(fileobj=BytesIO(data)) as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar}
    assert all(content[:10] == b"\x1f\x8b\x08\0\0\0\0\0\0\x03" for content in found.values())
    [first] = {name.partition("_")[0] for name in found}
    assert [*found] == [f"{first}_{number:08d}.json.gz" for number in range(len(found))]
    return [*map(gzip.decompress, found.values())]


LOADERS: dict[str, Callable[[bytes], Any]] = {
    ".json": json.loads,
    ".parquet": _columns,
    ".arrow": _columns,
    ".pkl": pickle.loads,
    ".tar": _members,
}


@pytest.mark.parametrize("format_", CASES)
def test_the_files_of_a_part_are_these_and_no_others(format_: str, tmp_path: Path):
    folder, _ = export_as(format_, tmp_path, ["ab", "c"])

    files = files_of(folder)
    found = {name: LOADERS.get(Path(name).suffix, bytes)(data) for name, data in files.items()}

    if format_ == "hf_dataset":
        assert len(found["train/state.json"].pop("_fingerprint")) == 16
    assert found == CASES[format_]


def rows_in(path: Path) -> list[int]:
    """Return how many rows each row group, each batch or (others) the file has."""
    if path.suffix == ".parquet":
        metadata = pq.read_metadata(path)
        return [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    if path.suffix == ".arrow":
        with pa.ipc.open_file(path) as file:
            return [file.get_batch(n).num_rows for n in range(file.num_record_batches)]
    if path.suffix == ".jsonl":
        return [len(path.read_text().splitlines())]
    return [len((pickle.loads if path.suffix == ".pkl" else _members)(path.read_bytes()))]


@pytest.mark.parametrize(
    ("format_", "options", "rows", "name"),
    [
        ("parquet", {"sequences_per_group": 2}, [[2, 2, 2, 1]], "train-{n}-of-00001.parquet"),
        ("easydel", {"shard_size": 5 * 68, "sequences_per_group": 2}, [[2, 2, 1], [2]],
         "train/shard-{n}.parquet"),
        ("arrow", {"shards": 2, "sequences_per_batch": 2}, [[2, 2], [2, 1]],
         "train-{n}-of-00002.arrow"),
        ("jsonl", {"shard_size": 3 * 8 * 4}, [[3], [3], [1]], "train-{n}-of-00003.jsonl"),
        ("webdataset", {"shards": 2}, [[4], [3]], "train/shard_000{n}.tar"),
    ],
)  # fmt: skip
def test_files_and_their_groups_are_as_long_as_asked_for(
    format_: str, options: dict[str, int], rows: list[list[int]], name: str, tmp_path: Path
):
    folder, _ = export_as(format_, tmp_path, ["x" * 27], **options)

    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*0000*")}

    expected = {name.format(n=f"{number:05d}"): of for number, of in enumerate(rows)}
    assert {path: rows_in(of) for path, of in found.items()} == expected


@pytest.mark.parametrize(
    ("format_", "constant"), [("parquet", "TOKENS_PER_BATCH"), ("easydel", "TOKENS_PER_GROUP")]
)
def test_a_row_group_holds_fewer_rows_where_they_are_long(
    format_: str, constant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(f"tokflow.exports.formats.{format_}.{constant}", 8)
    folder, _ = export_as(format_, tmp_path, ["abcdefghijklmnopqrs"])

    [path] = folder.rglob("*00000*.parquet")
    assert rows_in(path) == [2, 2, 1]


def test_the_size_of_a_shard_is_that_of_its_columns_in_memory(tmp_path: Path):
    """Of a token 13 bytes in four columns, and of a row 4 bytes more in each."""
    packing = {"packing": {"sequence_length": 1}}
    folder, _ = export_as("parquet", tmp_path, ["x" * 39_999], attributes=packing, shard_size="1MB")

    num_rows = [pq.read_metadata(path).num_rows for path in sorted(folder.glob("train-*"))]

    assert num_rows == [34_482, 5_518]


def test_rows_before_others_leave_most_bytes_as_they_were(tmp_path: Path):
    text = random.Random(1).randbytes(500_000).hex()
    packing, files = {"packing": {"sequence_length": 1_000}}, []
    for name, raw in (("alone", {}), ("behind", {"a.jsonl": ["x" * 999]})):
        texts = {**raw, "b.jsonl": [text]}
        folder, _ = export_as("parquet", tmp_path / name, texts, attributes=packing)
        files.append(folder / "train-00000-of-00001.parquet")

    alone, behind = (path.read_bytes() for path in files)
    blocks = [alone[start : start + 500] for start in range(0, len(alone) - 500, 10_000)]

    assert sum(block in behind for block in blocks) > len(blocks) / 2
    assert pq.read_metadata(files[0]).row_group(0).column(0).has_offset_index


SCHEMA = pa.schema(
    {"ids": pa.list_(pa.int32()), "is_token": pa.list_(pa.int8()), "url": pa.string()}
)


@pytest.mark.parametrize("compression", CODECS)
def test_tables_are_read_back_as_they_were_written(
    compression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.exports.formats.parquet.PAGE_VALUES", (2, 4))
    columns = {
        "ids": [[2**31 - 1, 0], [], [-100] * 17, [], [1]] + [[n, n] for n in range(400)],
        "is_token": [[1], [0, 1], [], [1] * 9, [-1]] + [[1, 1]] * 400,
        "url": ["é", None, "", None, "b"] + ["c" * 300] * 400,
    }
    table = pa.table(columns, schema=SCHEMA)
    with parquet_file(tmp_path / "a.parquet", SCHEMA, compression) as file:
        for rows in (table[3:], table[:1], table[:0]):
            file.write_table(rows)

    with pq.ParquetFile(tmp_path / "a.parquet") as read:
        groups = [read.read_row_group(number) for number in range(3)]

    assert groups == [table[3:], table[:1], table[:0]]
    assert groups[0].schema == SCHEMA


def test_a_page_ends_behind_the_same_rows_wherever_they_stand(tmp_path: Path):
    rows, pages = [[number] * 1_000 for number in range(600)], []
    for name, more in (("a", []), ("b", [[7] * 500])):
        table = pa.table({"ids": [*more, *rows]}, schema=SCHEMA.remove(2).remove(1))
        with parquet_file(tmp_path / name, table.schema, "none") as file:
            file.write_table(table)
        pages.append((tmp_path / name).read_bytes())

    alone, behind = pages
    found = [alone[at : at + 99_000] in behind for at in range(0, len(alone) - 99_000, 99_000)]

    assert sum(found) > len(found) / 2


def test_of_chats_easydel_has_labels_and_no_mask(tmp_path: Path):
    folder, _ = export(chat_dataset(tmp_path, CHATS, exports=["easydel"]))

    names = pq.read_schema(folder / "train" / "shard-00000.parquet").names

    assert names[-1] == "labels"
    assert "loss_mask" not in names


@pytest.mark.parametrize(("part", "split"), [("train_b", "train_b"), ("train-b", None)])
def test_a_name_that_datasets_takes_for_no_split_is_none(
    part: str, split: str | None, tmp_path: Path
):
    parts = {"split": {"parts": {part: {"start": 0}}}}
    folder, _ = export_as("hf_dataset", tmp_path, ["ab"], attributes=parts)

    assert json.loads((folder / part / "state.json").read_text())["_split"] == split
    assert json.loads((folder / "dataset_dict.json").read_text()) == {"splits": [part]}


@pytest.mark.parametrize("kind", ["List", "Sequence"])
def test_lists_are_called_as_readers_of_old_or_new_call_them(kind: str, tmp_path: Path):
    options = {"columns": ["labels"], "feature_type": kind}
    folder, _ = export_as("hf_dataset", tmp_path, ["ab"], **options)

    features = json.loads((folder / "train/dataset_info.json").read_text())["features"]
    schema = _table((folder / "train/data-00000-of-00001.arrow").read_bytes()).schema

    assert features == {name: {**LIST, "_type": kind} for name in ("input_ids", "labels")}
    assert json.loads(schema.metadata[b"huggingface"]) == {"info": {"features": features}}


def test_the_fingerprint_changes_with_the_content_and_with_nothing_else(tmp_path: Path):
    def fingerprint(name: str, texts: list[str], **options: Any) -> str:
        folder, _ = export_as("hf_dataset", tmp_path / name, texts, **options)
        return json.loads((folder / "train/state.json").read_text())["_fingerprint"]

    first = fingerprint("first", ["abc", "defgh"])

    assert fingerprint("again", ["abc", "defgh"]) == first
    assert fingerprint("text", ["abc", "defgi"]) != first
    assert fingerprint("columns", ["abc", "defgh"], columns=["segment_ids"]) != first


def test_a_line_has_the_columns_asked_for_in_that_order(tmp_path: Path):
    columns = ["seq_lengths", "labels", "loss_mask", "position_ids", "attention_mask"]
    folder, _ = export_as("jsonl", tmp_path, ["ab", "", "c"], columns=columns, padding=False)

    lines = (folder / "train-00000-of-00001.jsonl").read_text().splitlines()

    names = ["input_ids", *columns]
    assert [list(json.loads(line).items()) for line in lines] == [
        [*zip(names, of, strict=True)]
        for of in (
            (
                [*b"ab", EOS, EOS], [3, 1], [-100, *b"b", EOS, -100],
                [1, 1, 1, 1], [0, 1, 2, 0], [1, 1, 1, 1],
            ),
            ([*b"c", EOS], [2], [-100, EOS], [1, 1], [0, 1], [1, 1]),
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("suffix", "decompressor"), [("gz", zlib.decompressobj(31)), ("zst", zstd.ZstdDecompressor())]
)
def test_a_file_is_one_member_or_frame_without_a_time_whatever_is_written_at_once(
    suffix: str, decompressor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.exports.formats.jsonl.TOKENS_AT_ONCE", 8)
    texts = ["x" * 999, "größe"]
    plain, _ = export_as("jsonl", tmp_path / "plain", texts)
    folder, _ = export_as("jsonl", tmp_path / suffix, texts, compression=suffix)

    data = (folder / f"train-00000-of-00001.jsonl.{suffix}").read_bytes()

    expected = (plain / "train-00000-of-00001.jsonl").read_bytes()
    assert decompressor.decompress(data) == expected
    assert decompressor.eof
    assert not decompressor.unused_data
    assert suffix == "zst" or (data[4:8] == bytes(4) and gzip.decompress(data) == expected)


def shards_of(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "train/index.json").read_text())["shards"]


def test_a_shard_of_mds_holds_as_many_rows_as_its_limit_has_room_for(tmp_path: Path):
    folder, _ = export_as("mds", tmp_path / "first", texts := ["x" * 35], shard_size=250)
    [first, *_] = shards_of(folder)
    exact = first["raw_data"]["bytes"]

    sizes = {}
    for more in (0, -1, 19, 20):
        folder, _ = export_as("mds", tmp_path / f"{more}", texts, shard_size=exact + more)
        sizes[more] = [shard["samples"] for shard in shards_of(folder)]

    assert first["samples"] == 3
    assert sizes == {0: [3, 3, 3], -1: [2, 2, 2, 2, 1], 19: [3, 3, 3], 20: [4, 4, 1]}


def test_hashes_are_those_of_the_file(tmp_path: Path):
    folder, _ = export_as("mds", tmp_path, ["ab"], hashes=["xxh64", "sha1", "sha1", "blake2b"])

    [shard] = shards_of(folder)

    data = (folder / "train/shard.00000.mds").read_bytes()
    assert shard["hashes"] == ["blake2b", "sha1", "xxh64"]
    assert shard["raw_data"]["hashes"] == {
        "blake2b": hashlib.blake2b(data).hexdigest(),
        "sha1": hashlib.sha1(data).hexdigest(),
        "xxh64": xxhash.xxh64(data).hexdigest(),
    }


def test_a_row_that_no_shard_has_room_for_is_refused(tmp_path: Path):
    exports = [{"format": "mds", "shard_size": 200}]

    with pytest.raises(ConfigError) as raised:
        declare(tmp_path, {"a.jsonl": ["ab"]}, exports=exports)

    assert (raised.value.where, raised.value.found) == ("test: exports: mds: shard_size", "200")
    exports[0]["shard_size"] = 204
    assert not build_dataset(declare(tmp_path, {}, exports=exports)).failed


@pytest.mark.parametrize("pad_id", [32_014, -100])
def test_pickle_pads_with_its_own_id_and_tells_how_much_is_in_each_dump(
    pad_id: int, tmp_path: Path
):
    texts, options = ["ab", "c" * 8], {"pad_id": pad_id, "shards": 2}
    folder, _ = export_as("pickle", tmp_path, texts, **options)

    files = files_of(folder)
    dumps = [pickle.loads(files[f"train/dump-{number}.pkl"]) for number in range(2)]

    rows = [[*b"ab", EOS, *b"c"], [*b"cccc"], [*b"ccc", EOS]]
    assert [row for dump in dumps for row in dump][:3] == rows
    assert json.loads(files["train/dump-meta_data.json"]) == {
        f"dump-{number}.pkl": {"num_samples": len(dump), "num_tokens": 4 * len(dump)}
        for number, dump in enumerate(dumps)
    }
    assert {type(token) for dump in dumps for row in dump for token in row} == {int}


OF_ARROW = {"parquet": "parquet", "easydel": "parquet", "arrow": "ipc", "jsonl": "json"}
"""The name that pyarrow has for the files of a format."""


@pytest.mark.parametrize("name", OF_ARROW)
def test_a_folder_is_read_as_the_rows_of_both_parts_alone(name: str, tmp_path: Path):
    split = {"split": {"parts": {"train": {"documents": 1}, "validation": {"start": 1}}}}
    folder, _ = export_as(name, tmp_path, ["seven t", "three"], attributes=split)

    found = ds.dataset(folder, format=OF_ARROW[name]).to_table()["input_ids"].to_pylist()

    assert found == [[*b"seve"], [*b"n t", EOS], [*b"thre"], [*b"e", EOS, EOS, EOS]]
    if OF_ARROW[name] == "parquet":
        assert pd.read_parquet(folder)["input_ids"].map(list).to_list() == found

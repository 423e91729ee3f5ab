"""Plain readers of every export format: of the bytes, or through the peer's own library."""

import csv
import gzip
import json
import pickle
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokflow_tests.fuzz.exports import Options, is_stream
from tokflow_tests.fuzz.raw_files import zstd


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Documents end to end."""

    tokens: list[int]
    files: list[tuple[int, list[int] | None]]
    """Of each file: its tokens, and the tokens of each document where the format keeps that."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Sequences; `token_ids`, and by their names the other fields that the files hold."""

    fields: dict[str, list[list[int]]]
    sizes: list[int]
    """Rows of each file."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """What a reader is told."""

    folder: Path
    options: Options
    part: str
    parts: Sequence[str]
    dtype: str
    """Of the tokens, where the files do not say."""

    @property
    def val_name(self) -> str:
        """What nanoGPT and others call a part."""
        part, *stratum = self.part.split(".")
        is_val = part == "validation" and "val" not in [of.split(".")[0] for of in self.parts]
        return ".".join(["val" if is_val else part, *stratum])

    def numbered(self, pattern: str) -> list[Path]:
        """Return the files of a part by their number, of which a pattern may have the place."""
        found: list[Path] = []
        while (path := self.folder / pattern.format(len(found))).exists() and path not in found:
            found.append(path)
        return found


OfStream = Iterator[tuple[Iterable[int], list[int] | None]]
"""Of each file its tokens, and the tokens of each document where the format keeps that."""

OfRows = Iterator[Mapping[str, list[list[int]]]]
"""Of each file its columns."""


def read_part(export: Export) -> Stream | Rows:
    """Return what the files of a part hold."""
    files: Any = READERS[export.options["format"]](export)
    if is_stream(export.options):
        listed = [([int(token) for token in tokens], lengths) for tokens, lengths in files]
        sizes = [(len(tokens), lengths) for tokens, lengths in listed]
        return Stream(tokens=[token for tokens, _ in listed for token in tokens], files=sizes)
    fields: dict[str, list[list[int]]] = {}
    num_rows = []
    for columns in files:
        for name, values in columns.items():
            fields.setdefault("token_ids" if name == "input_ids" else name, []).extend(values)
        num_rows.append(max(map(len, columns.values()), default=0))
    return Rows(fields=fields, sizes=num_rows)


def _lengths(ends: Any) -> list[int]:
    """Return the lengths of documents from where they begin and the last one ends."""
    return np.diff(np.asarray(ends, dtype=np.int64)).tolist()


def _bin(export: Export) -> OfStream:
    name = export.options.get("names", {}).get(export.part, f"{export.val_name}.bin")
    for path in export.numbered(name):
        yield np.fromfile(path, dtype=export.dtype), None


def _llmc(export: Export) -> OfStream:
    prefix = export.options.get("prefix", "fuzz")
    for path in export.numbered(f"{prefix}_{export.val_name}_{{:06d}}.bin"):
        data = path.read_bytes()
        magic, version, num_tokens = struct.unpack_from("<iii", data)
        dtype = {(20240520, 1): "<u2", (20240801, 7): "<u4"}[magic, version]
        tokens = np.frombuffer(data[1024:], dtype=dtype)
        assert len(tokens) == num_tokens, (len(tokens), num_tokens)
        assert not any(data[12:1024])
        yield tokens, None


def _npy(export: Export) -> OfStream | OfRows:
    options, folder = export.options, export.folder
    is_numbered = {"prefix", "shards", "shard_size"} & {*options}
    prefix = f"{options['prefix']}_" if "prefix" in options else ""
    numbered = f"{prefix}{export.val_name}_{{:06d}}.npy"
    for path in export.numbered(numbered if is_numbered else f"{export.part}.npy"):
        names = ("segment_ids", "position_ids")
        if options.get("layout") == "sequences":
            beside = {name: np.load(folder / name / path.name).tolist() for name in names}
            yield {"token_ids": np.load(path).tolist(), **beside}
        else:
            offsets = np.load(folder / "offsets" / path.name)
            assert offsets[0] == 0
            yield np.load(path), _lengths(offsets)


def _megatron(export: Export) -> OfStream:
    prefix, key = export.options.get("prefix"), export.options.get("key", "text")
    stem = "_".join(filter(None, [prefix, export.part, key, "document"]))
    for path in export.numbered(f"{stem}.idx"):
        data = path.read_bytes()
        magic, version, code, num, num_firsts = struct.unpack_from("<9sQBQQ", data)
        assert (magic, version) == (b"MMIDIDX\0\0", 1)
        dtype = np.dtype({8: "<u2", 4: "<i4"}[code])
        sizes = np.frombuffer(data, "<i4", num, 34)
        pointers = np.frombuffer(data, "<i8", num, 34 + 4 * num)
        firsts = np.frombuffer(data, "<i8", num_firsts, 34 + 12 * num)
        assert len(data) == 34 + 12 * num + 8 * num_firsts
        assert (firsts[0], firsts[-1]) == (0, num)
        raw = path.with_suffix(".bin").read_bytes()
        ids = [
            np.frombuffer(raw, dtype, int(size), int(at)).tolist()
            for size, at in zip(sizes, pointers, strict=True)
        ]
        assert sum(map(len, ids)) * dtype.itemsize == len(raw)
        yield chain.from_iterable(ids), [sum(map(len, ids[a:b])) for a, b in pairwise(firsts)]


def _datatrove(export: Export) -> OfStream:
    for path in export.numbered(f"{export.part}/{{:05d}}_{export.part}.ds"):
        tokens = np.fromfile(path, dtype=export.dtype)
        ends = np.fromfile(f"{path}.index", dtype="<u8")
        first, total, _ = Path(f"{path}.metadata").read_text().split("\n")
        assert first.endswith(f"|{np.dtype(export.dtype).itemsize}"), first
        assert int(total) == len(tokens) == ends[-1]
        yield tokens, _lengths([0, *ends])


def _olmo(export: Export) -> OfStream:
    for path in export.numbered(f"{export.part}/part-0-{{:05d}}.npy"):
        with gzip.open(path.with_suffix(".csv.gz"), "rt", newline="", encoding="utf-8") as lines:
            table = list(csv.reader(lines))
        assert all(id_ == f"{src}:{int(loc) - 1}" for _, _, id_, src, loc in table), table[:3]
        ends = [int(end) for _, end, *_ in table]
        assert [int(start) for start, *_ in table] == [0, *ends[:-1]]
        yield np.fromfile(path, dtype=export.dtype), _lengths([0, *ends])


def _modalities(export: Export) -> OfStream:
    is_divided = {"shards", "shard_size"} & {*export.options}
    for path in export.numbered(
        f"{export.part}-{{:05d}}.pbin" if is_divided else f"{export.part}.pbin"
    ):
        data = path.read_bytes()
        num_bytes, itemsize = struct.unpack_from("<QI", data)
        index = pickle.loads(data[12 + num_bytes :])  # we have just made it
        sizes = [size for _, size in index]
        assert [start for start, _ in index] == [sum(sizes[:n]) for n in range(len(sizes))]
        tokens = np.frombuffer(data[12 : 12 + num_bytes], dtype=f"<u{itemsize}")
        yield tokens, [size // itemsize for size in sizes]


def _litdata(export: Export) -> OfStream:
    path, block = export.folder / export.part / "index.json", export.options.get("block_size", 2049)
    index = json.loads(path.read_text()) if path.is_file() else {"chunks": []}
    dtype = {"no_header_tensor:20": "<u2", "no_header_tensor:16": "<i4"}
    for chunk in index["chunks"]:
        data = (path.parent / chunk["filename"]).read_bytes()
        if index["config"]["compression"]:
            data = zstd.decompress(data)
        (num,) = struct.unpack_from("<I", data)
        offsets = np.frombuffer(data, "<u4", num + 1, 4)
        tokens = np.frombuffer(data[offsets[0] :], dtype[index["config"]["data_format"][0]])
        assert offsets[0] == 4 * (num + 2)
        assert offsets[-1] == len(data) == chunk["chunk_bytes"]
        assert (chunk["dim"], chunk["chunk_size"]) == (len(tokens), num)
        assert len(tokens) % block == 0 or chunk is index["chunks"][-1]
        yield tokens, None


def _levanter(export: Export) -> OfStream:
    folder = export.folder / export.part
    if not (folder / "shard_ledger.json").is_file():
        return
    ledger = json.loads((folder / "shard_ledger.json").read_text())
    offsets = _zarr(folder / "input_ids" / "offsets")
    num = int(offsets[0].read().result())
    assert ledger["is_finished"]
    assert ledger["total_num_rows"] == num
    ends = [0, *offsets[1 : num + 1].read().result().tolist()]
    yield _zarr(folder / "input_ids" / "data")[: ends[-1]].read().result(), _lengths(ends)


def _zarr(folder: Path) -> Any:
    import tensorstore

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder)}}
    return tensorstore.open(spec, open=True, read=True).result()


def _lance(export: Export) -> OfStream | OfRows:
    import lance

    path = export.folder / f"{export.part}.lance"
    for number, file in enumerate(
        lance.dataset(str(path)).get_fragments() if path.exists() else ()
    ):
        columns = file.to_table().to_pydict()
        if export.options.get("layout") == "sequences":
            yield columns
        else:
            documents = lance.dataset(f"{path.with_suffix('')}.documents.lance").to_table()
            lengths = documents["num_tokens"].to_pylist()
            yield columns["input_ids"], None if number else lengths  # files cut documents


def _archai(export: Export) -> OfStream:
    for path in export.numbered(f"{export.part}.npy"):
        assert "use_eos_token" in json.loads((export.folder / "config.json").read_text())
        yield np.load(path), None


def _of_n(export: Export, suffix: str) -> list[Path]:
    paths = sorted(export.folder.glob(f"{export.part}-{'[0-9]' * 5}*{suffix}"))
    names = [f"{export.part}-{n:05d}-of-{len(paths):05d}{suffix}" for n in range(len(paths))]
    assert [path.name for path in paths] == names
    return paths


def _parquet(export: Export) -> OfRows:
    for path in _of_n(export, ".parquet"):
        yield pq.read_table(path, partitioning=None).to_pydict()


def _easydel(export: Export) -> OfRows:
    for path in export.numbered(f"{export.part}/shard-{{:05d}}.parquet"):
        yield pq.read_table(path, partitioning=None).to_pydict()


def _arrow(export: Export) -> OfRows:
    for path in _of_n(export, ".arrow"):
        yield pa.ipc.open_file(str(path)).read_all().to_pydict()


def _hf_dataset(export: Export) -> OfRows:
    path, folder = export.folder / "dataset_dict.json", export.folder / export.part
    if not path.is_file() or export.part not in json.loads(path.read_text())["splits"]:
        assert not folder.exists()
        return
    for file in json.loads((folder / "state.json").read_text())["_data_files"]:
        yield pa.ipc.open_stream(str(folder / file["filename"])).read_all().to_pydict()


def _jsonl(export: Export) -> OfRows:
    compression = export.options.get("compression", "none")
    unpack = {"gz": gzip.decompress, "zst": zstd.decompress}.get(compression, bytes)
    for path in _of_n(export, ".jsonl" if compression == "none" else f".jsonl.{compression}"):
        rows = [json.loads(line) for line in unpack(path.read_bytes()).splitlines()]
        assert all(row.keys() == rows[0].keys() for row in rows)
        yield {name: [row[name] for row in rows] for name in rows[0]}


def _mds(export: Export) -> OfRows:
    path = export.folder / export.part / "index.json"
    of_column = export.options.get("columns") or {"tokens": "token_ids"}
    for shard in json.loads(path.read_text())["shards"] if path.is_file() else ():
        packed = shard["zip_data"] or shard["raw_data"]
        data = (path.parent / packed["basename"]).read_bytes()
        assert len(data) == packed["bytes"]
        data = zstd.decompress(data) if shard["zip_data"] else data
        (num,) = struct.unpack_from("<I", data)
        offsets = np.frombuffer(data, "<u4", num + 1, 4)
        assert offsets[-1] == len(data)
        names = [of_column.get(name, name) for name in shard["column_names"]]
        columns: dict[str, list[list[int]]] = {name: [] for name in names}
        for at in map(int, offsets[:-1]):
            for name, size, encoding in zip(
                names, shard["column_sizes"], shard["column_encodings"], strict=True
            ):
                dtype = np.dtype(encoding.split(":")[1])
                values = np.frombuffer(data, dtype, size // dtype.itemsize, at)
                columns[name].append(values.tolist())
                at += size
        yield columns


def _webdataset(export: Export) -> OfRows:
    paths = export.numbered(f"{export.part}/shard_{{:08d}}.tar")
    manifest = export.folder / export.part / "manifest.jsonl"
    lines = manifest.read_text().splitlines() if paths else []
    for path, line in zip(paths, lines, strict=True):
        with tarfile.open(path) as tar:
            members = [tar.extractfile(member) for member in tar]
            data = [member.read() for member in members if member is not None]
        assert json.loads(line)["num_sequences"] == len(data)
        data = [gzip.decompress(some) if some[:1] == b"\x1f" else some for some in data]
        yield {"token_ids": [json.loads(some) for some in data]}


def _pickle(export: Export) -> OfRows:
    for path in export.numbered(f"{export.part}/dump-{{}}.pkl"):
        yield {"token_ids": pickle.loads(path.read_bytes())}  # we have just made it


READERS: dict[str, Callable[[Export], OfStream | OfRows]] = {
    reader.__name__.removeprefix("_"): reader
    for reader in (
        _archai, _arrow, _bin, _datatrove, _easydel, _hf_dataset, _jsonl, _lance, _levanter,
        _litdata, _llmc, _mds, _megatron, _modalities, _npy, _olmo, _parquet, _pickle, _webdataset,
    )
}  # fmt: skip

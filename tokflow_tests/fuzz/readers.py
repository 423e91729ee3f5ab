"""Plain readers of every export format: of the bytes, or through the peer's own library."""

import csv
import gzip
import json
import pickle
import struct
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokflow_tests.fuzz.exports import Options
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

    def numbered(self, name_of: Callable[[int], str]) -> list[Path]:
        """Return the files of a part by their number."""
        found: list[Path] = []
        while (path := self.folder / name_of(len(found))).exists() and path not in found:
            found.append(path)
        return found


def _stream(files: Iterable[tuple[Iterable[int], list[int] | None]]) -> Stream:
    tokens: list[int] = []
    sizes = []
    for ids, lengths in files:
        listed = [int(token) for token in ids]
        tokens += listed
        sizes.append((len(listed), lengths))
    return Stream(tokens=tokens, files=sizes)


def _lengths(ends: Any) -> list[int]:
    """Return the lengths of documents from where they begin and the last one ends."""
    return np.diff(np.asarray(ends, dtype=np.int64)).tolist()


def _bin(export: Export) -> Stream:
    name = export.options.get("names", {}).get(export.part, f"{export.val_name}.bin")
    paths = export.numbered(lambda _: name)
    return _stream((np.fromfile(path, dtype=export.dtype), None) for path in paths)


def _llmc(export: Export) -> Stream:
    prefix = export.options.get("prefix", "fuzz")
    paths = export.numbered(lambda n: f"{prefix}_{export.val_name}_{n:06d}.bin")
    files = []
    for path in paths:
        data = path.read_bytes()
        magic, version, num_tokens = struct.unpack_from("<iii", data)
        dtype = {(20240520, 1): "<u2", (20240801, 7): "<u4"}[magic, version]
        tokens = np.frombuffer(data[1024:], dtype=dtype)
        assert len(tokens) == num_tokens, (len(tokens), num_tokens)
        assert not any(data[12:1024])
        files.append((tokens, None))
    return _stream(files)


def _npy(export: Export) -> Stream | Rows:
    options = export.options
    is_numbered = {"prefix", "shards", "shard_size"} & {*options}
    prefix = f"{options['prefix']}_" if "prefix" in options else ""

    def name_of(number: int) -> str:
        return (
            f"{prefix}{export.val_name}_{number:06d}.npy" if is_numbered else f"{export.part}.npy"
        )

    paths = export.numbered(name_of)
    if options.get("layout") != "sequences":
        offsets = [np.load(export.folder / "offsets" / path.name) for path in paths]
        assert all(some[0] == 0 for some in offsets)
        return _stream(
            (np.load(path), _lengths(some)) for path, some in zip(paths, offsets, strict=True)
        )
    fields: dict[str, list[list[int]]] = {"token_ids": [], "segment_ids": [], "position_ids": []}
    for path in paths:
        fields["token_ids"] += np.load(path).tolist()
        for name in ("segment_ids", "position_ids"):
            fields[name] += np.load(export.folder / name / path.name).tolist()
    return Rows(fields=fields, sizes=[len(np.load(path)) for path in paths])


def _megatron(export: Export) -> Stream:
    prefix, key = export.options.get("prefix"), export.options.get("key", "text")
    stem = "_".join(filter(None, [prefix, export.part, key, "document"]))
    files = []
    for path in export.numbered(lambda _: f"{stem}.idx"):
        data = path.read_bytes()
        magic, version, code, num, num_firsts = struct.unpack_from("<9sQBQQ", data)
        assert (magic, version) == (b"MMIDIDX\0\0", 1)
        dtype = np.dtype({8: "<u2", 4: "<i4"}[code])
        sizes = np.frombuffer(data, "<i4", num, 34)
        pointers = np.frombuffer(data, "<i8", num, 34 + 4 * num)
        firsts = np.frombuffer(data, "<i8", num_firsts, 34 + 12 * num)
        assert len(data) == 34 + 12 * num + 8 * num_firsts
        assert firsts[0] == 0
        assert firsts[-1] == num
        raw = path.with_suffix(".bin").read_bytes()
        ids = [
            np.frombuffer(raw, dtype, int(size), int(at)).tolist()
            for size, at in zip(sizes, pointers, strict=True)
        ]
        assert sum(map(len, ids)) * dtype.itemsize == len(raw)
        lengths = [sum(map(len, ids[a:b])) for a, b in pairwise(firsts)]
        files.append(([token for some in ids for token in some], lengths))
    return _stream(files)


def _datatrove(export: Export) -> Stream:
    files = []
    for path in export.numbered(lambda n: f"{export.part}/{n:05d}_{export.part}.ds"):
        tokens = np.fromfile(path, dtype=export.dtype)
        ends = np.fromfile(f"{path}.index", dtype="<u8")
        first, total, _ = Path(f"{path}.metadata").read_text().split("\n")
        assert first.endswith(f"|{np.dtype(export.dtype).itemsize}"), first
        assert int(total) == len(tokens) == ends[-1]
        files.append((tokens, _lengths([0, *ends])))
    return _stream(files)


def _olmo(export: Export) -> Stream:
    files = []
    for path in export.numbered(lambda n: f"{export.part}/part-0-{n:05d}.npy"):
        tokens = np.fromfile(path, dtype=export.dtype)
        with gzip.open(path.with_suffix(".csv.gz"), "rt", newline="", encoding="utf-8") as lines:
            table = list(csv.reader(lines))
        assert all(id_ == f"{src}:{int(loc) - 1}" for _, _, id_, src, loc in table), table[:3]
        ends = [int(end) for _, end, *_ in table]
        assert [int(start) for start, *_ in table] == [0, *ends[:-1]]
        files.append((tokens, _lengths([0, *ends])))
    return _stream(files)


def _modalities(export: Export) -> Stream:
    is_one = not {"shards", "shard_size"} & {*export.options}
    files = []
    for path in export.numbered(
        lambda n: f"{export.part}.pbin" if is_one else f"{export.part}-{n:05d}.pbin"
    ):
        data = path.read_bytes()
        num_bytes, itemsize = struct.unpack_from("<QI", data)
        index = pickle.loads(data[12 + num_bytes :])  # we have just made it
        tokens = np.frombuffer(data[12 : 12 + num_bytes], dtype=f"<u{itemsize}")
        starts = [start for start, _ in index]
        sizes = [size for _, size in index]
        assert starts == [sum(sizes[:n]) for n in range(len(sizes))]
        files.append((tokens, [size // itemsize for size in sizes]))
    return _stream(files)


def _litdata(export: Export) -> Stream:
    path = export.folder / export.part / "index.json"
    if not path.is_file():
        return _stream([])
    index = json.loads(path.read_text())
    dtype = {"no_header_tensor:20": "<u2", "no_header_tensor:16": "<i4"}
    files = []
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
        files.append((tokens, None))
    block = export.options.get("block_size", 2049)
    assert all(len(tokens) % block == 0 for tokens, _ in files[:-1])
    return _stream(files)


def _levanter(export: Export) -> Stream:
    folder = export.folder / export.part
    if not (folder / "shard_ledger.json").is_file():
        return _stream([])
    ledger = json.loads((folder / "shard_ledger.json").read_text())
    offsets = _zarr(folder / "input_ids" / "offsets")
    num = int(offsets[0].read().result())
    assert ledger["is_finished"]
    assert ledger["total_num_rows"] == num
    ends = [0, *offsets[1 : num + 1].read().result().tolist()]
    tokens = _zarr(folder / "input_ids" / "data")[: ends[-1]].read().result()
    return _stream([(tokens, _lengths(ends))])


def _zarr(folder: Path) -> Any:
    import tensorstore

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder)}}
    return tensorstore.open(spec, open=True, read=True).result()


def _lance(export: Export) -> Stream | Rows:
    import lance

    path = export.folder / f"{export.part}.lance"
    files = lance.dataset(str(path)).get_fragments() if path.exists() else []
    tables = [file.to_table() for file in files]
    if export.options.get("layout") == "sequences":
        return _rows_of(tables)
    documents = export.folder / f"{export.part}.documents.lance"
    lengths = lance.dataset(str(documents)).to_table()["num_tokens"].to_pylist() if tables else []
    return _stream(
        (table["input_ids"].to_pylist(), None if number else lengths)  # files cut documents
        for number, table in enumerate(tables)
    )


def _archai(export: Export) -> Stream:
    paths = export.numbered(lambda _: f"{export.part}.npy")
    assert not paths or "use_eos_token" in json.loads((export.folder / "config.json").read_text())
    return _stream((np.load(path), None) for path in paths)


def _rows_of(tables: Iterable[pa.Table]) -> Rows:
    fields: dict[str, list[list[int]]] = {}
    sizes = []
    for table in tables:
        for name in table.column_names:
            key = "token_ids" if name == "input_ids" else name
            fields.setdefault(key, []).extend(table[name].to_pylist())
        sizes.append(len(table))
    return Rows(fields=fields, sizes=sizes)


def _of_n(export: Export, suffix: str) -> list[Path]:
    paths = [
        path
        for path in sorted(export.folder.glob(f"{export.part}-*{suffix}"))
        if path.name.removeprefix(f"{export.part}-")[:5].isdigit()
    ]
    names = [f"{export.part}-{n:05d}-of-{len(paths):05d}{suffix}" for n in range(len(paths))]
    assert [path.name for path in paths] == names
    return paths


def _parquet(export: Export) -> Rows:
    return _rows_of(pq.read_table(path, partitioning=None) for path in _of_n(export, ".parquet"))


def _easydel(export: Export) -> Rows:
    paths = export.numbered(lambda n: f"{export.part}/shard-{n:05d}.parquet")
    return _rows_of(pq.read_table(path, partitioning=None) for path in paths)


def _arrow(export: Export) -> Rows:
    return _rows_of(pa.ipc.open_file(str(path)).read_all() for path in _of_n(export, ".arrow"))


def _hf_dataset(export: Export) -> Rows:
    path = export.folder / "dataset_dict.json"
    if not path.is_file() or export.part not in json.loads(path.read_text())["splits"]:
        assert not (export.folder / export.part).exists()
        return Rows(fields={}, sizes=[])
    folder = export.folder / export.part
    names = [f["filename"] for f in json.loads((folder / "state.json").read_text())["_data_files"]]
    return _rows_of(pa.ipc.open_stream(str(folder / name)).read_all() for name in names)


def _jsonl(export: Export) -> Rows:
    compression = export.options.get("compression", "none")
    suffix = ".jsonl" if compression == "none" else f".jsonl.{compression}"
    fields: dict[str, list[list[int]]] = {}
    sizes = []
    for path in _of_n(export, suffix):
        data = path.read_bytes()
        unpack = {"gz": gzip.decompress, "zst": zstd.decompress}.get(compression, bytes)
        rows = [json.loads(line) for line in unpack(data).splitlines()]
        for row in rows:
            for name, values in row.items():
                fields.setdefault("token_ids" if name == "input_ids" else name, []).append(values)
        sizes.append(len(rows))
    return Rows(fields=fields, sizes=sizes)


def _mds(export: Export) -> Rows:
    path = export.folder / export.part / "index.json"
    fields: dict[str, list[list[int]]] = {}
    sizes = []
    for shard in json.loads(path.read_text())["shards"] if path.is_file() else ():
        packed = shard["zip_data"] or shard["raw_data"]
        data = (path.parent / packed["basename"]).read_bytes()
        assert len(data) == packed["bytes"]
        data = zstd.decompress(data) if shard["zip_data"] else data
        (num,) = struct.unpack_from("<I", data)
        offsets = np.frombuffer(data, "<u4", num + 1, 4)
        assert offsets[-1] == len(data)
        of_column = export.options.get("columns") or {"tokens": "token_ids"}
        for start in offsets[:-1]:
            at = int(start)
            for name, size, encoding in zip(
                shard["column_names"], shard["column_sizes"], shard["column_encodings"], strict=True
            ):
                dtype = np.dtype(encoding.split(":")[1])
                values = np.frombuffer(data, dtype, size // dtype.itemsize, at).tolist()
                fields.setdefault(of_column.get(name, name), []).append(values)
                at += size
        sizes.append(num)
    return Rows(fields=fields, sizes=sizes)


def _webdataset(export: Export) -> Rows:
    rows: list[list[int]] = []
    sizes = []
    for path in export.numbered(lambda n: f"{export.part}/shard_{n:08d}.tar"):
        with tarfile.open(path) as tar:
            members = [tar.extractfile(member) for member in tar]
            data = [member.read() for member in members if member is not None]
        data = [gzip.decompress(some) if some[:1] == b"\x1f" else some for some in data]
        rows += [json.loads(some) for some in data]
        sizes.append(len(data))
    if sizes:
        lines = (export.folder / export.part / "manifest.jsonl").read_text().splitlines()
        assert [json.loads(line)["num_sequences"] for line in lines] == sizes
    return Rows(fields={"token_ids": rows}, sizes=sizes)


def _pickle(export: Export) -> Rows:
    rows: list[list[int]] = []
    sizes = []
    for path in export.numbered(lambda n: f"{export.part}/dump-{n}.pkl"):
        some = pickle.loads(path.read_bytes())  # we have just made it
        rows += some
        sizes.append(len(some))
    return Rows(fields={"token_ids": rows}, sizes=sizes)


READERS: dict[str, Callable[[Export], Stream | Rows]] = {
    "archai": _archai,
    "arrow": _arrow,
    "bin": _bin,
    "datatrove": _datatrove,
    "easydel": _easydel,
    "hf_dataset": _hf_dataset,
    "jsonl": _jsonl,
    "lance": _lance,
    "levanter": _levanter,
    "litdata": _litdata,
    "llmc": _llmc,
    "mds": _mds,
    "megatron": _megatron,
    "modalities": _modalities,
    "npy": _npy,
    "olmo": _olmo,
    "parquet": _parquet,
    "pickle": _pickle,
    "webdataset": _webdataset,
}

"""mosaicml-streaming's MDS shards of sequences, as llm-foundry and Composer read them.

    <part>/shard.<i>.mds   uint32 num_rows | uint32 first byte of each, and the end | JSON: columns
                           and settings | rows; with compression shard.<i>.mds.zstd
    <part>/index.json      the shards with their sizes, and hashes where asked for
    row                    the columns one after another, sorted by name, little-endian
    tokens                 ndarray:int32:<sequence_length>; so is
    segment_ids            int32   1, 2, ... in each row; 0 is padding
    loss_mask              uint8   1 at tokens that are learnt
    lost                   the fields of which `columns` has none: by default position_ids, which
                           count from 0 in each segment

`StreamingDataset(local=<export>, split=<part>, batch_size=...)` reads it.

Source: mosaicml-streaming 0.13.0, base/format/mds/writer.py lines 83-146,
base/format/base/writer.py lines 70-300, base/format/mds/encodings.py; MDSWriter writes the same
bytes for the same rows.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
)

import numpy as np
import numpy.typing as npt
import pydantic
import xxhash

from tokflow.errors import ConfigError, CorruptOutputError
from tokflow.exports.format import Arrays, Counts, Declared, Format, Layout
from tokflow.exports.names import numbered
from tokflow.exports.options import check_level
from tokflow.exports.part import Part
from tokflow.exports.row_files import write_files
from tokflow.exports.shards import equal_sizes, rows_within
from tokflow.exports.zstd_ import MAX_LEVEL, Compression, compress, open_bytes, peer_name
from tokflow.sequences.segments import Sequences
from tokflow.store.config import Config, Listed
from tokflow.store.manifest import Manifest

Field = Literal["token_ids", "segment_ids", "position_ids", "loss_mask"]

DTYPES: dict[Field, str] = {
    "token_ids": "int32",
    "segment_ids": "int32",
    "position_ids": "int32",
    "loss_mask": "uint8",
}

DEFAULT_COLUMNS: dict[str, Field] = {
    "tokens": "token_ids",
    "segment_ids": "segment_ids",
    "loss_mask": "loss_mask",
}

Hash = Literal["blake2b", "blake2s", "md5", "sha1", "sha224", "sha256", "sha384", "sha512",
               "xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128"]  # fmt: skip

DEFAULT_LEVEL = 3

MAX_SHARD_BYTES = 2**32 - 1
"""Rows begin at bytes that are counted in uint32."""

BYTES_AT_ONCE = 2**26
"""Of rows that are read; their tokens are copied to another dtype."""


class MdsOptions(Config):
    """Options of the mds format."""

    columns: dict[str, Field] = pydantic.Field(default_factory=lambda: dict(DEFAULT_COLUMNS))
    """Name of each column -> its field: token_ids, segment_ids, position_ids or loss_mask.
    `{tokens: token_ids}` is what llm-foundry writes: less than half the bytes."""
    size_limit: Annotated[int, pydantic.Field(ge=1, le=MAX_SHARD_BYTES), "which uint32 counts"] = (
        2**26
    )
    """Most bytes of a shard before it is compressed."""
    compression: Compression = "none"
    """zstd: each shard is one frame, made in memory."""
    compression_level: int | None = None
    """1 to 22; by default 3, as mosaicml-streaming's."""
    hashes: Listed[Hash] = ()
    """Hashes of each shard that index.json has, for `validate_hash`."""

    def check(self) -> None:
        """Refuse options that do not go together."""
        largest = MAX_LEVEL if self.compression == "zstd" else None
        check_level(self.compression_level, largest)
        fields = list(self.columns.values())
        if "token_ids" not in fields or len(set(fields)) < len(fields) or "" in self.columns:
            raise ConfigError(
                where="columns",
                expected="named columns: one of token_ids, and of other fields one at most",
                found=repr(dict(self.columns)),
                remedy="leave it out, or begin with `tokens: token_ids`",
            )


def layout(options: MdsOptions) -> Layout:
    """Return the fields that the columns hold."""
    wanted = set(options.columns.values())
    return Layout(made_of="sequences", keeps=tuple(name for name in DTYPES if name in wanted))


def write(parts: Sequence[Part], options: MdsOptions, folder: Path) -> Counts:
    """Write the shards of each part into a folder of its own; a part without a row has none."""
    counts: Counts = {}
    for part in parts:
        counts |= _write_part(part, options, folder / part.name)
    return counts


def _write_part(part: Part, options: MdsOptions, folder: Path) -> Counts:
    dtype = _row_dtype(options.columns, part.sequence_length)
    settings = _settings(options, part.sequence_length)
    per_shard = _rows_per_shard(options, part.sequence_length)
    sizes = equal_sizes(part.num_sequences, per_shard)
    level = options.compression_level or DEFAULT_LEVEL
    shards: list[dict[str, Any]] = []
    if sizes:
        folder.mkdir()

    def write_shard(number: int, groups: Iterator[Sequences]) -> None:
        rows = (_as_rows(made, options.columns, dtype) for made in groups)
        shards.append(_write_shard(folder, number, sizes[number], rows, settings, level=level))

    counts = write_files(part, write_shard, columns=layout(options).keeps, per_file=per_shard)
    if shards:
        index = {"version": 2, "shards": shards}
        (folder / "index.json").write_text(json.dumps(index, sort_keys=True))
    return counts


def _row_dtype(columns: Mapping[str, Field], length: int) -> np.dtype[np.void]:
    return np.dtype(
        [
            (name, np.dtype(DTYPES[columns[name]]).newbyteorder("<"), (length,))
            for name in sorted(columns)
        ]
    )


def _settings(options: MdsOptions, length: int) -> dict[str, Any]:
    """Return what each shard says of itself and the index says of each shard."""
    dtypes = [DTYPES[options.columns[name]] for name in sorted(options.columns)]
    return {
        "version": 2,
        "format": "mds",
        "compression": peer_name(options.compression, options.compression_level),
        "hashes": sorted(set(options.hashes)),
        "size_limit": options.size_limit,
        "column_names": sorted(options.columns),
        "column_encodings": [f"ndarray:{dtype}:{length}" for dtype in dtypes],
        "column_sizes": [np.dtype(dtype).itemsize * length for dtype in dtypes],
    }


def _rows_per_shard(options: MdsOptions, length: int) -> int:
    """Return how many rows of so many tokens a shard has room for.

    Raises: ConfigError where it has none.
    """
    fixed_bytes = 8 + len(_header_text(_settings(options, length)))
    row_bytes = _row_dtype(options.columns, length).itemsize
    if (rows := (options.size_limit - fixed_bytes) // (row_bytes + 4)) < 1:
        raise ConfigError(
            where="exports: mds: size_limit",
            expected=f"at least {fixed_bytes + row_bytes + 4:,}, a shard of one row",
            found=f"{options.size_limit:,}",
            remedy="raise it, or lower `packing.sequence_length`",
        )
    return rows


def _header_text(settings: Mapping[str, Any]) -> bytes:
    return json.dumps(settings, sort_keys=True).encode()


def _as_rows(
    made: Sequences, columns: Mapping[str, Field], dtype: np.dtype[np.void]
) -> npt.NDArray[np.void]:
    rows = np.empty(len(made), dtype=dtype)
    for name, field_name in columns.items():
        rows[name] = getattr(made, field_name)
    return rows


def _write_shard(
    folder: Path,
    number: int,
    num_rows: int,
    rows: Iterator[npt.NDArray[np.void]],
    settings: Mapping[str, Any],
    *,
    level: int,
) -> dict[str, Any]:
    """Write one shard; return what the index says of it."""
    name = f"shard.{number:05d}.mds"
    text = _header_text(settings)
    row_bytes = sum(settings["column_sizes"])
    offsets = 4 * (num_rows + 2) + len(text) + np.arange(num_rows + 1) * row_bytes
    header = np.concatenate([[num_rows], offsets]).astype("<u4").tobytes() + text
    pieces: Iterator[Any] = chain([header], (run.view(np.uint8).data for run in rows))
    hashes = settings["hashes"]
    if settings["compression"] is None:
        raw, packed = _described(name, pieces, hashes, folder), None
    else:
        data = b"".join(pieces)
        raw = _described(name, [data], hashes, None)
        data = compress(data, level)
        packed = _described(f"{name}.zstd", [data], hashes, folder)
    return {**settings, "samples": num_rows, "raw_data": raw, "zip_data": packed}


def _described(
    name: str, pieces: Iterable[bytes | memoryview], hashes: Sequence[Hash], folder: Path | None
) -> dict[str, Any]:
    """Return name, size and hashes of a file; write it where a folder is given."""
    digests = {hash_: _new_hash(hash_) for hash_ in hashes}
    size = 0
    with nullcontext() if folder is None else (folder / name).open("wb") as file:
        for piece in pieces:
            for digest in digests.values():
                digest.update(piece)
            if file is not None:
                file.write(piece)
            size += len(piece)
    hexadecimal = {hash_: digest.hexdigest() for hash_, digest in digests.items()}
    return {"basename": name, "bytes": size, "hashes": hexadecimal}


def _new_hash(name: Hash) -> Any:
    return getattr(xxhash, name)() if name.startswith("xxh") else hashlib.new(name)


def read(folder: Path, manifest: Manifest, part: str) -> Iterator[Arrays]:
    """Yield the columns of a part as their fields, some million tokens at a time.

    Raises: CorruptOutputError for a shard whose size is not the one it announces.
    """
    options = MdsOptions(**manifest.config["options"])
    dtype = _row_dtype(options.columns, manifest.details["sequence_length"])
    column_of: dict[str, str] = {kept: column for column, kept in options.columns.items()}
    suffix = ".zstd" if options.compression == "zstd" else ""
    for name in numbered(manifest, lambda number: f"{part}/shard.{number:05d}.mds{suffix}"):
        rows = _read_shard(folder / name, dtype)
        at_once = rows_within(BYTES_AT_ONCE, dtype.itemsize)
        for first in range(0, len(rows), at_once):
            some = rows[first : first + at_once]
            fields = {kept: some[column_of[kept]] for kept in layout(options).keeps}
            fields["token_ids"] = fields["token_ids"].astype(manifest.details["dtype"])
            if "loss_mask" in fields:
                fields["loss_mask"] = fields["loss_mask"].astype(bool)
            yield fields


def _read_shard(path: Path, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Return the rows of a shard, memory-mapped unless it is compressed."""
    data = open_bytes(path, is_compressed=path.suffix == ".zstd")
    num_rows = int(data[:4].view("<u4")[0])
    first, stop = data[4 : 4 * (num_rows + 2)].view("<u4")[[0, -1]].tolist()
    if stop != len(data) or stop - first != num_rows * dtype.itemsize:
        raise CorruptOutputError(
            where=path,
            expected=f"{first + num_rows * dtype.itemsize:,} bytes, {num_rows:,} rows in them",
            found=f"{len(data):,}",
            remedy="delete the export and run again",
        )
    return data[first:].view(dtype)


def check(options: MdsOptions, declared: Declared) -> None:
    """Refuse a size_limit that no row fits into."""
    _rows_per_shard(options, declared.packing.row_length)


FORMAT = Format(
    description="MDS: <part>/shard.<i>.mds and index.json, for mosaicml-streaming",
    options=MdsOptions,
    layout=layout,
    write=write,
    read=read,
    check=check,
)

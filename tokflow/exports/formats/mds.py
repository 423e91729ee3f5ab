"""mosaicml-streaming's MDS shards of sequences, as llm-foundry and Composer read them.

    <part>/shard.<i>.mds   uint32 num_rows | uint32 first byte of each, and the end | JSON: columns
                           and settings | rows; with compression shard.<i>.mds.zstd
    <part>/index.json      the shards with their sizes, and hashes where asked for
    row                    the columns one after another, sorted by name, little-endian
    tokens                 ndarray:int32:<sequence_length>; where `columns` names them, so are
    segment_ids            int32   1, 2, ... in each row; 0 is padding
    position_ids           int32   from 0 in each segment
    loss_mask              uint8   1 at loss tokens
    lost                   the fields of which `columns` has none: by default all but the tokens

`StreamingDataset(local=<export>, split=<part>, batch_size=...)` reads it.

Source: mosaicml-streaming 0.13.0, base/format/mds/writer.py lines 83-146,
base/format/base/writer.py lines 70-300, base/format/mds/encodings.py; MDSWriter writes the same
bytes for the same rows.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import xxhash

from tokflow.errors import ConfigError
from tokflow.exports import Arrays, Export, FileFacts, Format, Layout, Part, damaged_file
from tokflow.exports.options import ByFileOptions, PartRows
from tokflow.exports.token_files import (
    Compression,
    files_of,
    item_header,
    open_hashed,
    open_items,
    peer_name,
)
from tokflow.store.config import Listed, Size
from tokflow.store.streams import zstd

Field = Literal["token_ids", "segment_ids", "position_ids", "loss_mask"]

DTYPES: dict[Field, str] = {
    "token_ids": "<i4",
    "segment_ids": "<i4",
    "position_ids": "<i4",
    "loss_mask": "|u1",
}

Hash = Literal["blake2b", "blake2s", "md5", "sha1", "sha224", "sha256", "sha384", "sha512",
               "xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128"]  # fmt: skip

DEFAULT_LEVEL = 3

MAX_SHARD_BYTES = 2**32 - 1
"""Rows begin at bytes that are counted in uint32."""


SHARD_BYTES = 2**26
"""Default size of a shard."""


class MdsOptions(ByFileOptions):
    """MDS: <part>/shard.<i>.mds and index.json, for mosaicml-streaming."""

    columns: dict[str, Field] = pydantic.Field({"tokens": "token_ids"})
    """Name of each column -> its field: token_ids, segment_ids, position_ids or loss_mask. By
    default the tokens alone, as llm-foundry writes and reads them: 4 bytes a token."""
    shard_size: Annotated[
        Size | None, pydantic.Field(le=MAX_SHARD_BYTES), "which uint32 counts"
    ] = None
    """Most bytes of a shard (size_limit), before compression; default: 64MiB."""
    compression: Compression = "none"
    """zstd: each shard is one frame, made in memory."""
    compression_level: int | None = None
    """1 to 22; by default 3, as mosaicml-streaming's."""
    hashes: Listed[Hash] = ()
    """Hashes of each shard that index.json has, for `validate_hash`."""

    def check(self) -> None:
        """Refuse options that do not go together."""
        super().check()
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


def write(part: Part, options: MdsOptions, folder: Path) -> Iterator[FileFacts]:
    """Write the shards of a part into a folder of its own."""
    dtype = _dtype(options.columns, part.sequence_length)
    settings = _settings(options, dtype)
    text = json.dumps(settings, sort_keys=True).encode()
    sizes = _sizes(part.rows, options)
    for number, batches in files_of(part, sizes, options):
        first = 4 * (sizes[number] + 2) + len(text)
        header = item_header(first + np.arange(sizes[number] + 1) * dtype.itemsize)
        records = np.empty(sizes[number], dtype=dtype)
        num = 0
        for batch in batches:
            for name, field in options.columns.items():
                records[num : num + len(batch)][name] = getattr(batch, field)
            num += len(batch)
        data = b"".join([header, text, records.view(np.uint8).data])
        facts = {"samples": sizes[number], "raw_data": _described(data, options), "zip_data": None}
        if options.compression == "zstd":
            data = zstd.compress(data, level=options.compression_level or DEFAULT_LEVEL)
            facts["zip_data"] = _described(data, options)
        with open_hashed(folder / _name(part.name, number, options)) as file:
            file.write(data)
        yield facts


def _name(part: str, number: int, options: MdsOptions, *_: Any) -> str:
    return f"{part}/shard.{number:05d}.mds{'.zstd' if options.compression == 'zstd' else ''}"


def finish(parts: Sequence[Part], options: MdsOptions, folder: Path) -> None:
    """Write the index of each part."""
    for part in parts:
        shards = []
        settings = _settings(options, _dtype(options.columns, part.sequence_length))
        for number, facts in enumerate(part.files):
            name = Path(_name(part.name, number, options))
            named = {"raw_data": name.name.removesuffix(".zstd"), "zip_data": name.name}
            files = {of: facts[of] and {**facts[of], "basename": named[of]} for of in named}
            shards.append({**settings, "samples": facts["samples"], **files})
        index = {"version": 2, "shards": shards}
        (folder / part.name / "index.json").write_text(json.dumps(index, sort_keys=True))


def _dtype(columns: Mapping[str, Field], length: int) -> np.dtype[np.void]:
    return np.dtype([(name, DTYPES[columns[name]], (length,)) for name in sorted(columns)])


def _settings(options: MdsOptions, dtype: np.dtype[np.void]) -> dict[str, Any]:
    """Return what each shard says of itself and the index says of each shard."""
    columns = [dtype[name] for name in sorted(options.columns)]
    return {
        "version": 2,
        "format": "mds",
        "compression": peer_name(options.compression, options.compression_level),
        "hashes": sorted(set(options.hashes)),
        "size_limit": None if options.num_shards else options.shard_size or SHARD_BYTES,
        "column_names": sorted(options.columns),
        "column_encodings": [f"ndarray:{column.base}:{column.shape[0]}" for column in columns],
        "column_sizes": [column.itemsize for column in columns],
    }


def _sequences_within(num_bytes: int, options: MdsOptions, dtype: np.dtype[np.void]) -> int:
    """Return how many sequences a shard of so many bytes has room for.

    Raises: ConfigError where it has none.
    """
    fixed_bytes = 8 + len(json.dumps(_settings(options, dtype), sort_keys=True))
    row_bytes = dtype.itemsize + 4
    if (num := (num_bytes - fixed_bytes) // row_bytes) < 1:
        raise ConfigError(
            where="shard_size",
            expected=f"at least {fixed_bytes + row_bytes:,}, a shard of one row",
            found=f"{num_bytes:,}",
            remedy="raise it, or lower `packing.sequence_length`",
        )
    return num


def _sizes(rows: PartRows, options: MdsOptions) -> list[int]:
    dtype = _dtype(options.columns, rows.sequence_length)
    size = MAX_SHARD_BYTES if options.num_shards else options.shard_size or SHARD_BYTES
    usual = _sequences_within(size, options, dtype)
    return options.sizes(rows, dtype.itemsize + 4, usual, most=usual)


def _described(data: bytes, options: MdsOptions) -> dict[str, Any]:
    hashes = {}
    for name in options.hashes:
        new = getattr(xxhash, name) if name.startswith("xxh") else partial(hashlib.new, name)
        hashes[name] = new(data).hexdigest()
    return {"bytes": len(data), "hashes": hashes}


def _load(export: Export, name: str) -> Arrays:
    """Return the columns of a shard as their fields.

    Raises: CorruptOutputError for a shard whose size is not the one it announces.
    """
    columns, path = export.options.columns, export.stored.file(name)
    dtype = _dtype(columns, export.manifest.details["sequence_length"])
    column_of = {kept: column for column, kept in columns.items()}
    data, offsets = open_items(path, is_compressed=path.suffix == ".zstd")
    if len(wrong := np.flatnonzero(np.diff(offsets) != dtype.itemsize)):
        expected = f"rows of {dtype.itemsize:,} bytes"
        raise damaged_file(path, expected=expected, found=f"another at row {wrong[0]:,}")
    records = data[offsets[0] :].view(dtype)
    fields = {kept: records[column_of[kept]] for kept in export.layout.keeps}
    if "loss_mask" in fields:
        fields["loss_mask"] = fields["loss_mask"].view(bool)
    return fields


def check(options: MdsOptions, lengths: Collection[int]) -> None:
    """Refuse a shard_size that no sequence fits into."""
    for length in lengths:
        num_bytes = options.shard_size or SHARD_BYTES
        _sequences_within(num_bytes, options, _dtype(options.columns, length))


FORMAT = Format(
    MdsOptions,
    layout,
    write,
    _name,
    load=_load,
    is_mapped=lambda options: options.compression == "none",
    check=check,
    finish=finish,
    sizes=_sizes,
)

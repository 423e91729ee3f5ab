"""litdata's chunks of tokens, for its StreamingDataset(item_loader=TokensLoader(block_size)).

    <part>/chunk-0-<i>.bin     uint32 num_items | uint32 first byte of each, and the end
                               | token ids, little-endian; a document is an item, and where the end
                               of a chunk cuts it, two; with compression chunk-0-<i>.zstd.bin
    <part>/index.json          chunks with their sizes and numbers of tokens, dtype, compression
    dtype                      uint16 up to id 65,535, else int32, for torch has no more of uint32
    lost                       loss_mask; the document that an item of a chunk's edge is of, and
                               those of no tokens

A TokensLoader takes whole blocks from each chunk and leaves out what remains, so chunks hold a
multiple of `block_size` tokens: only of the last one a rest is left out, which the files hold
nevertheless. Another block size in training loses a rest of each chunk. Compressed chunks are
unpacked beside themselves and then removed where the loader is given a local folder.

Source: litdata 0.2.76, streaming/writer.py lines 296-328, 431-560 and 814-866,
streaming/item_loader.py lines 1491-1690; its `optimize` writes the same bytes for the same items.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from tokflow.errors import ConfigError
from tokflow.exports import Arrays, Export, FileFacts, Format, Layout, Part
from tokflow.exports.options import ShardOptions, cut, equal_sizes, even_sizes
from tokflow.exports.token_files import Compression, item_header, open_hashed, open_items, peer_name
from tokflow.store.config import Count, Size
from tokflow.store.streams import zstd

DTYPES = {2: ("<u2", 20), 4: ("<i4", 16)}
"""Bytes of a token -> dtype in the chunks, and litdata's number for it."""

DEFAULT_LEVEL = 4

MAX_CHUNK_BYTES = 2**32 - 1
"""Items begin at bytes that are counted in uint32."""


CHUNK_BYTES = 64_000_000
"""Default size of a chunk's tokens."""

CONTENT = "content"
"""Name of a chunk's hash among its facts."""


class LitdataOptions(ShardOptions):
    """litdata: <part>/chunk-0-<i>.bin and index.json, for a TokensLoader."""

    block_size: Count = 2049
    """Tokens that a TokensLoader gives at a time: the context length and one more."""
    shard_size: Size | None = None
    """Most bytes of tokens in a chunk (chunk_bytes), of whole blocks and one at least; a chunk is
    made in memory. Default: 64MB."""
    compression: Compression = "none"
    """zstd: each chunk is one frame."""
    compression_level: int | None = None
    """1 to 22; by default 4, as litdata's."""

    def chunk_sizes(self, num_tokens: int, itemsize: int) -> tuple[int, list[int]]:
        """Return the tokens of a full chunk, a multiple of block_size, and of each chunk of a
        part."""
        if self.num_shards is None:
            tokens = (self.shard_size or CHUNK_BYTES) // itemsize
            full = max(tokens // self.block_size, 1) * self.block_size
            return full, equal_sizes(num_tokens, full)
        num_blocks = -(-num_tokens // self.block_size)
        sizes = [num * self.block_size for num in even_sizes(num_blocks, self.num_shards)]
        return max(sizes), [*sizes[:-1], num_tokens - sum(sizes[:-1])]

    @property
    def codec(self) -> str | None:
        """litdata's name of the compression, in the index and in file names."""
        return peer_name(self.compression, self.compression_level)


def write(part: Part, options: LitdataOptions, folder: Path) -> Iterator[FileFacts]:
    """Write a part into a folder of its own."""
    itemsize = part.dtype.itemsize
    dtype, _ = DTYPES[itemsize]
    _, sizes = options.chunk_sizes(part.num_tokens, itemsize)
    ends = np.cumsum(part.document_lengths())
    first = 0
    for number, arrays in enumerate(cut(part.stream(), sizes), part.first_number):
        tokens = np.concatenate([array.astype(dtype, copy=False) for array in arrays])
        starts = _starts(ends, first, first + len(tokens))
        first += len(tokens)
        offsets = starts * itemsize + 4 * (len(starts) + 1)
        if (num_bytes := int(offsets[-1])) > MAX_CHUNK_BYTES:
            change = "lower `shard_size`" if options.num_shards is None else "raise `shards`"
            raise ConfigError(
                where="",
                expected=f"chunks of at most {MAX_CHUNK_BYTES:,} bytes, which uint32 counts",
                found=f"one of {num_bytes:,} bytes",
                remedy=f"{change}, or lower `block_size` if a block is longer than that",
            )
        data = b"".join((item_header(offsets), tokens.data))
        own = {"chunk_bytes": len(data), "chunk_size": len(starts) - 1, "dim": len(tokens)}
        content = xxhash.xxh3_128_hexdigest(data)
        if options.codec:
            data = zstd.compress(data, level=options.compression_level or DEFAULT_LEVEL)
        with open_hashed(folder / _name(part.name, number, options)) as file:
            file.write(data)
        yield {**own, CONTENT: content}


def finish(parts: Sequence[Part], options: LitdataOptions, folder: Path) -> None:
    """Write the index of each part."""
    for part in parts:
        itemsize = part.dtype.itemsize
        per_chunk, _ = options.chunk_sizes(part.num_tokens, itemsize)
        chunks = [
            {**facts, "filename": Path(_name(part.name, number, options)).name}
            for number, facts in enumerate(part.files)
        ]
        contents = "".join(chunk.pop(CONTENT) for chunk in chunks)
        config = {
            "chunk_bytes": None,
            "chunk_size": per_chunk,
            "compression": options.codec,
            "compression_batch_size": None,
            "compression_level": None,
            "data_format": [f"no_header_tensor:{DTYPES[itemsize][1]}"],
            "data_spec": json.dumps([1, {"type": None, "context": None, "children_spec": []}]),
            "encryption": None,
            "ipc_compression": None,
            "item_loader": "TokensLoader",
            "types": "tensor",
        }
        # Instead of a time, updated_at has what the chunks hold: by it a loader knows whether the
        # copies that it keeps of a remote folder are still right.
        updated_at = xxhash.xxh3_128_hexdigest(contents.encode())
        index = {"chunks": chunks, "config": config, "updated_at": updated_at}
        (folder / part.name / "index.json").write_text(json.dumps(index, sort_keys=True))


def _name(part: str, number: int, options: LitdataOptions, *_: Any) -> str:
    return ".".join(filter(None, [f"{part}/chunk-0-{number}", options.codec, "bin"]))


def _starts(ends: npt.NDArray[np.int64], first: int, stop: int) -> npt.NDArray[np.int64]:
    """Return where the items of a chunk begin, and the last ends, in tokens of the chunk.

    `ends`: of all documents of the part; the chunk is what stands from `first` to `stop`.
    """
    inside = slice(*np.searchsorted(ends, [first, stop]))
    is_new = np.diff(ends[inside], prepend=first) > 0  # a document of no tokens is no item
    starts: npt.NDArray[np.int64] = np.concatenate([[first], ends[inside][is_new], [stop]])
    return starts - first


def _lengths(export: Export, part: str) -> list[int]:
    """Return the tokens of each chunk."""
    if facts := export.facts(part):
        return [of["dim"] for of in facts]
    num_tokens = export.counts[f"{part}.num_tokens"]
    return export.options.chunk_sizes(num_tokens, export.dtype.itemsize)[1] if num_tokens else []


def _load(export: Export, name: str) -> Arrays:
    """Return the token ids of a chunk.

    Raises: CorruptOutputError for a chunk whose size is not the one it announces.
    """
    is_compressed = export.options.codec is not None
    data, offsets = open_items(export.stored.file(name), is_compressed=is_compressed)
    return {"token_ids": data[offsets[0] :].view(export.dtype)}


# Version 2: updated_at is a hash of what each chunk holds.
FORMAT = Format(
    LitdataOptions,
    lambda options: Layout("stream", ("token_ids",)),
    write,
    _name,
    load=_load,
    is_mapped=lambda options: options.codec is None,
    lengths=_lengths,
    finish=finish,
    version=2,
)

"""modalities' .pbin: the token ids of a part between a header and a pickled index of documents.

    <part>.pbin    with `shards` or `shard_size` <part>-00000.pbin, ...; none without tokens
    header         uint64 bytes of the data | uint32 bytes per token: 2 up to id 65,535, else 4
    data           token ids, little-endian, documents end to end, EOS included
    index          pickle of [(first byte in the data, bytes), ...], one tuple per document;
                   those of no tokens among them
    lost           loss_mask: PackedMemMapDatasetBase has a field for tokens and for nothing else

PackedMemMapDatasetContinuous does not load the index and drops the tokens behind its last block.
modalities' own index is shorter, for pickle writes small numbers in fewer bytes; both load as
equal lists. Ours has one width throughout, so that arrays can make and read it: no pickle is
ever loaded here.

Source: modalities 0.5.0, dataloader/create_packed_data.py lines 216-272 and 327-400;
dataloader/dataset.py lines 191-412.
"""

import struct
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.errors import CorruptOutputError
from tokflow.exports import Arrays, Export, FileFacts, Format, Layout, Part, damaged_file
from tokflow.exports.options import ShardOptions
from tokflow.exports.token_files import cut_by_documents, write_numbers
from tokflow.pools.machine import in_order
from tokflow.store.config import Size
from tokflow.store.requests import AT_ONCE
from tokflow.store.tables import offsets_of

HEADER = struct.Struct("<QI")

INDEX_START, INDEX_STOP = b"\x80\x04](", b"e."
"""Protocol 4, a list, a mark; then what follows the mark is put on the list."""

LONG1, TUPLE2 = b"\x8a\x08", b"\x86"
"""A number of 8 bytes; the two last things as a tuple. Source: Lib/pickletools.py."""

ENTRY = np.dtype(
    [("long", "S2"), ("start", "<i8"), ("long_", "S2"), ("length", "<i8"), ("tuple", "S1")]
)
"""The opcodes of one tuple of the index."""

ENTRIES_AT_ONCE = 2**20


class ModalitiesOptions(ShardOptions):
    """modalities: <part>.pbin, header, tokens and a pickled index of documents."""

    shard_size: Size | None = None
    """Most bytes of tokens in a file, such as 500MB, whole documents in each; default: one file per
    part."""


def write(part: Part, options: ModalitiesOptions, folder: Path) -> Iterator[FileFacts]:
    """Write the tokens and documents of a part."""
    itemsize = part.dtype.itemsize
    for shard in cut_by_documents(part, options):
        path = folder / _name(part.name, shard.number, options)
        header = HEADER.pack(shard.num_tokens * itemsize, itemsize)
        index = _index(shard.lengths * itemsize)
        write_numbers(path, chain(shard.tokens, index), header=header)
        yield {}


def _name(part: str, number: int, options: ModalitiesOptions, *_: Any) -> str:
    return f"{part}-{number:05d}.pbin" if options.is_divided else f"{part}.pbin"


def _index(lengths: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the index of documents of so many bytes."""
    starts = offsets_of(lengths)[:-1]
    yield np.frombuffer(INDEX_START, dtype=np.uint8)
    for first in range(0, len(starts), ENTRIES_AT_ONCE):
        some = slice(first, first + ENTRIES_AT_ONCE)
        entries = np.empty(len(starts[some]), dtype=ENTRY)
        entries["long"] = entries["long_"] = LONG1
        entries["tuple"] = TUPLE2
        entries["start"], entries["length"] = starts[some], lengths[some]
        yield entries.view(np.uint8)
    yield np.frombuffer(INDEX_STOP, dtype=np.uint8)


def _lengths(export: Export, part: str) -> list[int]:
    """Return the tokens of each file, which their headers alone tell."""
    headers = in_order(partial(_header, export), export.numbered(part), workers=AT_ONCE)
    return [num // export.dtype.itemsize for num, *_ in headers]


def _header(export: Export, name: str) -> tuple[int, int, int]:
    """Return the bytes of the data of a file, of a token, and of all."""
    with export.stored.open(name) as file:
        header = file.read(HEADER.size)
        size = file.seek(0, 2)
    return (*(HEADER.unpack(header) if len(header) == HEADER.size else (0, 0)), size)


def _load(export: Export, name: str) -> Arrays:
    num_bytes, itemsize, size = _header(export, name)
    first = HEADER.size + num_bytes + len(INDEX_START)
    num_documents, rest = divmod(size - first - len(INDEX_STOP), ENTRY.itemsize)
    path, stored = export.folder / name, export.stored
    if itemsize != export.dtype.itemsize or num_documents < 1 or rest:
        raise _not_ours(path, f"a header of {num_bytes:,} bytes of data in a file of {size:,}")
    entries = stored.numbers(name, ENTRY, first_byte=first, shape=(num_documents,))[:]
    starts, lengths = entries["start"], entries["length"].astype(np.int64)
    offsets = offsets_of(lengths)
    is_tuple = (entries["long"] == LONG1) & (entries["long_"] == LONG1)
    is_tuple &= (entries["tuple"] == TUPLE2) & (starts == offsets[:-1])
    if not is_tuple.all() or offsets[-1] != num_bytes:
        raise _not_ours(path, "an index that tokflow did not write, or data that it does not fit")
    shape = (num_bytes // itemsize,)
    tokens = stored.numbers(name, export.dtype, first_byte=HEADER.size, shape=shape)
    return {"token_ids": tokens, "offsets": offsets // itemsize}


def _not_ours(path: Path, found: str) -> CorruptOutputError:
    expected = "a header, the data it announces, and an index as tokflow writes it"
    return damaged_file(path, expected=expected, found=found)


FORMAT = Format(
    ModalitiesOptions,
    lambda options: Layout("stream", ("token_ids", "offsets"), attends_across=True),
    write,
    _name,
    load=_load,
    lengths=_lengths,
)

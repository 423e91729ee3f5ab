"""JSON lines: one object per sequence, its fields lists of numbers.

    <part>-<i>-of-<n>.jsonl    also .jsonl.gz (one member, mtime 0) and .jsonl.zst (one frame)
    {"input_ids":[464,2068],"segment_ids":[1,1]}
               input_ids and the columns of the option; no blanks, a newline behind each object;
               lists of one length unless `padding: false`
    lost       what no column tells of

`datasets.load_dataset("json", data_files=...)`, pandas.read_json(lines=True) and pyarrow.json
read it. Text has twice the bytes of parquet's numbers: for eyes, and for tools that know nothing
else.

`datasets.load_dataset(folder)` knows train, validation and test alone: see parquet.

Source: jsonlines.org; RFC 8259; RFC 1952 for .gz, whose one member is deflated in pieces that do
not depend on each other, as pigz -i does.
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from tokflow.documents.compression import read_blocks
from tokflow.exports.columns import (
    TYPES,
    Lists,
    check_columns,
    fields_of,
    layout_of_columns,
    segment_lengths,
    values_of,
    with_loss_mask,
)
from tokflow.exports.format import Arrays, Counts, Format
from tokflow.exports.json_text import JsonList, JsonRows
from tokflow.exports.options import check_level
from tokflow.exports.part import Part
from tokflow.exports.row_files import (
    damage_named,
    file_names,
    named_files,
    rows_per_file,
    write_files,
)
from tokflow.exports.shards import rows_within
from tokflow.sequences.segments import Sequences
from tokflow.store.config import Config, Count, Listed
from tokflow.store.manifest import Manifest
from tokflow.store.zstd import zstd
from tokflow.tokens.prefetch import in_order

TOKENS_AT_ONCE = 500_000
"""Made into text at one go; a column of them takes some 15 MB meanwhile."""

READ_BYTES = 4_000_000

GZIP_HEADER = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
"""Deflate; no name, no time; system unknown."""

LAST_BLOCK = b"\x03\x00"
"""An empty block of deflate that says it is the last."""


class JsonlOptions(Config):
    """Options of the jsonl format."""

    columns: Listed[str] = ("segment_ids",)
    """Beside input_ids: attention_mask, segment_ids, position_ids, loss_mask (of chats it is
    added), labels (-100 where nothing is learnt), seq_lengths (tokens of each segment)."""
    padding: bool = True
    """Whether rows are filled up to sequence_length; if not, a list ends at its last token."""
    megabytes_per_file: Count = 500
    """Size of a shard, counted as 4 bytes per token; the text of input_ids has some 6."""
    sequences_per_file: Count | None = None
    """Sequences per shard; given instead of `megabytes_per_file`."""
    compression: Literal["none", "gz", "zst"] = "none"
    """gz: .jsonl.gz; zst: .jsonl.zst."""
    compression_level: int | None = None
    """gz: 1 to 9, default 3; zst: 1 to 22, default 3."""

    def check(self) -> None:
        """Refuse options that do not go together."""
        check_columns(self.columns, padding=self.padding)
        largest = {"none": None, "gz": 9, "zst": 22}[self.compression]
        check_level(self.compression_level, largest)


def write(parts: Sequence[Part], options: JsonlOptions, folder: Path) -> Counts:
    """Write the shards of each part; a part without a row has none."""
    counts: Counts = {}
    for part in parts:
        counts |= _write_part(part, options, folder)
    return counts


def _write_part(part: Part, options: JsonlOptions, folder: Path) -> Counts:
    per_file = rows_per_file(options, part, where="jsonl")
    names = file_names(part, per_file, _suffix(options.compression))
    columns = with_loss_mask(options.columns, part)
    lines = _lines_of(part, columns, padding=options.padding)
    write_blocks = _WRITERS[options.compression]

    def write_file(number: int, groups: Iterator[Sequences]) -> None:
        with (folder / names[number]).open("wb") as file:
            for block in write_blocks(lines, groups, options.compression_level):
                file.write(block)

    at_once = rows_within(TOKENS_AT_ONCE, part.sequence_length)
    return write_files(part, write_file, columns=columns, per_file=per_file, at_once=at_once)


def _suffix(compression: str) -> str:
    return ".jsonl" if compression == "none" else f".jsonl.{compression}"


Lines = Callable[[Sequences], memoryview]
"""Makes the lines of rows."""


def _lines_of(part: Part, columns: Sequence[str], *, padding: bool) -> Lines:
    before = {name: f'{"," if number else "{"}"{name}":[' for number, name in enumerate(columns)}
    if not part.num_sequences:
        return lambda rows: memoryview(b"")
    largest = max(part.vocab_size - 1, part.sequence_length)
    table = JsonRows(largest, pad_id=part.pad_id, before=[*before.values()], after="}\n")

    def lines(rows: Sequences) -> memoryview:
        is_token = None if padding else rows.segment_ids != 0
        lists = []
        for name in columns:
            if name == "seq_lengths":
                lists.append(_segment_list(rows, before[name]))
            else:
                lists.append(JsonList(before[name], values_of(rows, name), is_token))
        return table.text(lists)[0]

    return lines


def _segment_list(rows: Sequences, before: str) -> JsonList:
    lengths, num_segments = segment_lengths(rows)
    is_value = np.arange(num_segments.max()) < num_segments[:, None]
    values = np.zeros(is_value.shape, dtype=np.int32)
    values[is_value] = lengths
    return JsonList(before, values, is_value)


def _plain(lines: Lines, groups: Iterable[Sequences], level: int | None) -> Iterator[memoryview]:
    return in_order(lines, groups)


def _gzipped(
    lines: Lines, groups: Iterable[Sequences], level: int | None
) -> Iterator[bytes | memoryview]:
    """Yield one gzip member, deflated by two threads; the same bytes for the same groups."""

    def deflate(rows: Sequences) -> tuple[memoryview, bytes]:
        text = lines(rows)
        deflated = zlib.compressobj(level or 3, zlib.DEFLATED, -zlib.MAX_WBITS)
        return text, deflated.compress(text) + deflated.flush(zlib.Z_FULL_FLUSH)

    checksum = num_bytes = 0
    yield GZIP_HEADER
    for text, piece in in_order(deflate, groups):
        checksum = zlib.crc32(text, checksum)
        num_bytes += len(text)
        yield piece
    yield LAST_BLOCK + struct.pack("<II", checksum, num_bytes % 2**32)


def _zstandard(lines: Lines, groups: Iterable[Sequences], level: int | None) -> Iterator[bytes]:
    """Yield one frame, since some readers stop at the end of the first."""
    compressor = zstd.ZstdCompressor(level=level or 3)
    for text in in_order(lines, groups):
        yield compressor.compress(text)
    yield compressor.flush()


_WRITERS: Mapping[str, Callable[..., Iterator[bytes | memoryview]]] = {
    "none": _plain,
    "gz": _gzipped,
    "zst": _zstandard,
}


def read(folder: Path, manifest: Manifest, part: str) -> Iterator[Arrays]:
    """Yield the sequences of a part, some at a time; each field (rows, sequence_length).

    Raises: CorruptOutputError for lines that are no such objects, RawFileError where the
    compressed data is damaged.
    """
    decoder = msgspec.json.Decoder(dict[str, list[int]])
    suffix = _suffix(manifest.config["options"]["compression"])
    columns: list[str] = []
    for name in named_files(manifest, part, suffix):
        with damage_named(folder / name, expected="objects of lists of numbers, one per line"):
            for lines in _whole_lines(folder / name):
                if rows := decoder.decode_lines(lines):
                    columns = columns or [*rows[0]]
                    lists = {column: _lists(rows, column) for column in columns}
                    yield fields_of(lists, manifest)


def _whole_lines(path: Path) -> Iterator[bytes]:
    rest = b""
    for block in read_blocks(path, block_bytes=READ_BYTES):
        lines, newline, rest_of_block = block.rpartition(b"\n")
        if newline:
            yield rest + lines
            rest = rest_of_block
        else:
            rest += block
    yield rest


def _lists(rows: Sequence[Mapping[str, Sequence[int]]], column: str) -> Lists:
    lists = [row[column] for row in rows]
    num_values = np.array([*map(len, lists)], dtype=np.int64)
    dtype = TYPES[column].to_pandas_dtype()
    values = np.fromiter(chain.from_iterable(lists), dtype=dtype, count=int(num_values.sum()))
    return values, num_values


FORMAT = Format(
    description="JSON lines: <part>-<i>-of-<n>.jsonl (.gz, .zst), an object per sequence with "
    "input_ids and the columns asked for",
    options=JsonlOptions,
    layout=lambda options: layout_of_columns(options.columns),
    write=write,
    read=read,
)

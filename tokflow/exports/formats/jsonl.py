"""JSON lines: one object per sequence, its fields lists of numbers.

    <part>-<i>-of-<n>.jsonl    also .jsonl.gz (one member, mtime 0) and .jsonl.zst (one frame)
    {"input_ids":[464,2068],"segment_ids":[1,1]}
               input_ids and the columns of the option; no blanks, a newline behind each object;
               lists of one length unless `padding: none`; behind them, as text or null, those
               of `documents.keep_columns`, where the strategy is one_document, of a
               part or of all
    lost       what no column tells of

`datasets.load_dataset("json", data_files=...)`, pandas.read_json(lines=True) and pyarrow.json
read it. Text has twice the bytes of parquet's numbers: for eyes, and for tools that know nothing
else.

`datasets.load_dataset(folder)` knows train, validation and test alone: see parquet.

Source: jsonlines.org; RFC 8259; RFC 1952 for .gz.
"""

import gzip
import mmap
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, Any, Literal, cast

import msgspec
import numpy as np
import numpy.typing as npt

from tokflow.documents.compression import read_blocks
from tokflow.documents.lines import cut
from tokflow.exports.columns import (
    OF_IDS,
    TYPES,
    Lists,
    columns_in_files,
    columns_read,
    fields_of,
    layout_of_columns,
    lists_of,
    sizes_of_rows,
    written_positions,
)
from tokflow.exports.format import Arrays, Format, Portion
from tokflow.exports.kept import KeptOfSequences
from tokflow.exports.new_files import open_hashed
from tokflow.exports.options import Column, ColumnOptions, PartRows, check_level
from tokflow.exports.part import Part
from tokflow.exports.reading import Export
from tokflow.exports.records import Located, ReadOn, Taken, portions_of_records
from tokflow.exports.token_files import (
    numbered_files,
    numbered_names,
    sequences_within,
)
from tokflow.sequences.segments import Sequences
from tokflow.store.arrow import offsets_of
from tokflow.store.config import Listed, Size
from tokflow.store.zstd import zstd

TOKENS_AT_ONCE = 500_000
"""Made into text at one go; a column of them takes some 20 MB meanwhile."""

READ_BYTES = 4_000_000


class JsonlOptions(ColumnOptions):
    """JSON lines: <part>-<i>-of-<n>.jsonl (.gz, .zst), an object per sequence with input_ids and
    the columns asked for."""

    shard_size: Size | None = None
    """Most bytes of a file before compression, such as 500MB, counted as 6 for each id and 2 for
    each other number. Default: 125 million tokens, padding included."""
    columns: Listed[Column] = ("segment_ids",)
    """Beside input_ids: attention_mask, segment_ids, position_ids, loss_mask (of chats it is
    added), labels (-100 at other than loss tokens), seq_lengths (tokens of each segment)."""
    compression: Literal["none", "gz", "zst"] = "none"
    """gz: .jsonl.gz; zst: .jsonl.zst."""
    compression_level: int | None = None
    """gz: 1 to 9, default 3; zst: 1 to 22, default 3."""

    def check(self) -> None:
        """Refuse options that do not go together."""
        super().check()
        check_level(self.compression, self.compression_level)


def write(part: Part, options: JsonlOptions, folder: Path) -> None:
    """Write the shards of a part."""
    columns = columns_in_files(options, is_chats=part.has_loss_mask)
    suffix = _suffix(options.compression)
    kept = KeptOfSequences(part)
    written = written_positions(part, options.padding)
    at_once = sequences_within(TOKENS_AT_ONCE, part.sequence_length)
    sizes, stem = _sizes(part.rows, options), folder / part.name
    for path, batches in numbered_files(part, sizes, options, stem, suffix, at_once=at_once):
        with _opened(path, options) as file:
            for batch in batches:
                file.write(_lines(batch, columns, written, kept))


def _sizes(rows: PartRows, options: JsonlOptions) -> list[int]:
    columns = columns_in_files(options, is_chats=rows.has_loss_mask)
    num_bytes = sum(6 if name in OF_IDS else 2 for name in columns)
    return sizes_of_rows(rows, options, num_bytes * rows.sequence_length)


def _suffix(compression: str) -> str:
    return ".jsonl" if compression == "none" else f".jsonl.{compression}"


@contextmanager
def _opened(path: Path, options: JsonlOptions) -> Iterator[IO[bytes]]:
    """Open a new file; of a compressed one a gzip member without name and time, or one frame."""
    level = options.compression_level or 3
    with open_hashed(path) as hashed:
        plain = cast(IO[bytes], hashed)
        if options.compression == "gz":
            with gzip.GzipFile("", "wb", level, plain, mtime=0) as file:
                yield cast(IO[bytes], file)
        elif options.compression == "zst":
            with zstd.ZstdFile(plain, "wb", level=level) as file:
                yield cast(IO[bytes], file)
        else:
            yield plain


def _lines(
    sequences: Sequences, columns: Sequence[str], written: slice | None, kept: KeptOfSequences
) -> bytes:
    lists: list[Iterable[Any]] = [
        _of_sequences(*lists_of(sequences, name, written)) for name in columns
    ]
    lists += [column.to_pylist() for column in kept.next(len(sequences)).columns]
    names = (*columns, *kept.names)
    records = [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]
    return msgspec.json.Encoder().encode_lines(records)


def _of_sequences(
    values: npt.NDArray[Any], num_values: npt.NDArray[np.int64]
) -> Iterator[list[int]]:
    flat = values.tolist()
    return (flat[start:stop] for start, stop in pairwise(offsets_of(num_values).tolist()))


def portions(export: Export, part: str) -> list[Portion]:
    """Return some lines of a file each."""
    suffix = _suffix(export.options.compression)
    length = export.manifest.details["sequence_length"]
    at_once = sequences_within(TOKENS_AT_ONCE, length)
    read_on = ReadOn(_lines_of)

    def taken_of(path: Path) -> Taken:
        if suffix != ".jsonl":
            return partial(read_on.taken, path)
        return Located(path, _end_of_line, bytes.splitlines).taken

    return [
        portion
        for name, num in zip(
            numbered_names(export.manifest, part, suffix),
            _sizes(export.rows(part), export.options),
            strict=True,
        )
        for taken in [taken_of(export.folder / name)]
        for portion in portions_of_records(export, name, num, at_once, taken, _load)
    ]


def _end_of_line(data: mmap.mmap, start: int) -> int:
    return data.find(b"\n", start) + 1 or len(data)


def _lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a compressed file.

    Raises: RawFileError where the compressed data is damaged.
    """
    for batch in cut(read_blocks(path, block_bytes=READ_BYTES), b"\n", max_bytes=sys.maxsize):
        yield from batch.lines


def _load(export: Export, lines: Sequence[bytes]) -> Arrays:
    decoder = msgspec.json.Decoder(dict[str, list[int] | str | None])
    records = [decoder.decode(line) for line in lines]
    columns = columns_read(records[0], export.manifest.details["keeps"])
    return fields_of({column: _lists(records, column) for column in columns}, export)


def _lists(records: Sequence[Mapping[str, Any]], column: str) -> Lists:
    lists = [record[column] for record in records]
    num_values = np.array([*map(len, lists)], dtype=np.int64)
    dtype = np.dtype(str(TYPES[column]))
    values = np.fromiter(chain.from_iterable(lists), dtype=dtype, count=int(num_values.sum()))
    return values, num_values


# Version 2: members of gzip have other bytes than those of version 1.
FORMAT = Format(
    JsonlOptions,
    layout_of_columns,
    write,
    portions,
    version=2,
    sizes=_sizes,
)

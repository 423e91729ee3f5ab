"""OLMo's token files, as dolma's tokenizer makes them: raw numbers in files called .npy.

    <part>/part-0-00000.npy          token ids, uint16 up to id 65,535, else uint32; little-endian,
                                     documents end to end, no header: `np.load` does not read it
    <part>/part-0-00000.csv.gz       a line per document: start, end (tokens in the .npy), id
                                     (<raw file>:<row>), raw file, row counted from 1; no header
    <part>/labels_mask-0-00000.npy   of chats alone: raw bool, 1 where the label counts
    lost                             documents of no tokens have no line

Files hold whole documents. NumpyFSLDataset leaves out the tokens that fill no sequence at the end
of each file, so few and large files lose least; NumpyPackedFSLDataset loses none, given
`long_doc_strategy=fragment`. It looks for EOS unless it is told `use_array_if_local=False`: then
it reads the .csv.gz, which also tells documents apart that do not end with EOS. Give the paths as
`<part>/part-*.npy`, and of chats `<part>/labels_mask-*.npy`, which sort alike.

Source: dolma 1.2.1, tokenizer/memmap_writer.py lines 62-96, tokenizer/data_types.py lines 45-50,
tokenizer/executor.py lines 300-310; ai2-olmo-core 3.0.0, data/numpy_dataset.py lines 535-775 and
1140-1550, data/utils.py lines 153-266.
"""

import gzip
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from tokflow.exports import Arrays, Export, FileFacts, Format, Layout, Part, damaged_file
from tokflow.exports.options import ShardOptions
from tokflow.exports.token_files import cut_by_documents, open_hashed, write_numbers
from tokflow.store.config import Size
from tokflow.store.tables import to_numpy

COLUMNS = ["start", "end", "id", "src", "loc"]
"""Columns of a line."""

GZIP_LEVEL = 3
"""A million lines of 81 bytes take 1.2 s and leave 12 MB; at level 9, 12 s and 11 MB."""

LINES_AT_ONCE = 2**16


TOKENS_PER_FILE = 500_000_000
"""Default: max_size of dolma's tokenizer."""


class OlmoOptions(ShardOptions):
    """OLMo: <part>/part-0-<i>.npy of raw tokens, a .csv.gz of documents and, of chats,
    labels_mask-0-<i>.npy."""

    shard_size: Size | None = None
    """Most bytes of tokens in a file, such as 500MB, whole documents in each; default: 500 million
    tokens (max_size)."""


def write(part: Part, options: OlmoOptions, folder: Path) -> Iterator[FileFacts]:
    """Write a part into a folder of its own."""
    documents = _documents(part)
    for shard in cut_by_documents(part, options, usual=TOKENS_PER_FILE, has_loss_mask=True):
        name = _name(part.name, shard.number)
        write_numbers(folder / name, shard.tokens)
        lines = _lines(islice(documents, len(shard.lengths)))
        with (
            open_hashed(folder / _lines_of(name)) as raw,
            gzip.GzipFile("", "wb", GZIP_LEVEL, raw, mtime=0) as file,
        ):
            # Whole, not through a TextIOWrapper: its flush at the end would add to the bytes.
            while some := "".join(islice(lines, LINES_AT_ONCE)):
                file.write(some.encode())
        if shard.loss_mask is not None:
            write_numbers(folder / _mask_of(name), shard.loss_mask)
        yield {}


def _name(part: str, number: int, *_: Any) -> str:
    return f"{part}/part-0-{number:05d}.npy"


def _mask_of(name: str) -> str:
    return name.replace("/part-0-", "/labels_mask-0-")


def _lines_of(name: str) -> str:
    return f"{name.removesuffix('.npy')}.csv.gz"


def _documents(part: Part) -> Iterator[tuple[str, int, int]]:
    """Yield the raw file, the row and the number of tokens of each document."""
    for of_one in part.documents():
        for first in range(0, len(of_one.row), LINES_AT_ONCE):
            some = slice(first, first + LINES_AT_ONCE)
            raw_files, rows = of_one.origins.of_rows(of_one.row[some])
            num_tokens = of_one.num_tokens[some].tolist()
            yield from zip(raw_files.to_pylist(), rows.tolist(), num_tokens, strict=True)


def _lines(documents: Iterator[tuple[str, int, int]]) -> Iterator[str]:
    """Yield a line for each document that has tokens."""
    position = 0
    for raw_file, row, num_tokens in documents:
        if num_tokens:
            name, mark = raw_file, ""
            if any(special in raw_file for special in ',"\r\n'):
                name, mark = raw_file.replace('"', '""'), '"'
            end = position + num_tokens
            id_ = f"{mark}{name}:{row}{mark}"
            yield f"{position},{end},{id_},{mark}{name}{mark},{row + 1}\n"
            position = end


def _load(export: Export, name: str) -> Arrays:
    """Return the fields of a file.

    Raises: CorruptOutputError where its lines are not about all of its tokens.
    """
    stored, path = export.stored, export.stored.file(_lines_of(name))
    tokens = stored.numbers(name, export.dtype)
    types = {"start": pa.int64(), "end": pa.int64()}
    convert = csv.ConvertOptions(include_columns=list(types), column_types=types)
    columns = csv.ReadOptions(column_names=COLUMNS)
    table = csv.read_csv(path, read_options=columns, convert_options=convert)
    starts, ends = to_numpy(table["start"]), to_numpy(table["end"])
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), ends])
    if (starts != offsets[:-1]).any() or offsets[-1] != len(tokens):
        raise damaged_file(
            path,
            expected=f"documents end to end, {len(tokens):,} tokens in all",
            found=f"{len(ends):,} that are not, or end at {offsets[-1]:,}",
        )
    fields: Arrays = {"token_ids": tokens, "offsets": offsets}
    if (mask := _mask_of(name)) in export.manifest.files:
        fields["loss_mask"] = stored.numbers(mask, np.bool_)
    return fields


FORMAT = Format(
    OlmoOptions,
    lambda options: Layout("stream", ("token_ids", "offsets", "loss_mask"), leaves_out_empty=True),
    write,
    _name,
    beside=lambda name: (_lines_of(name), _mask_of(name)),
    load=_load,
)

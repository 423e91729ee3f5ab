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
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from tokflow.errors import CorruptOutputError
from tokflow.exports.format import Arrays, Counts, Format, Layout, counts_of_stream, fixed
from tokflow.exports.names import numbered
from tokflow.exports.part import Part
from tokflow.exports.shards import cut_runs
from tokflow.exports.token_files import cut_by_documents, write_mask, write_numbers
from tokflow.store.arrow import make_table, repeated, to_arrow, to_numpy
from tokflow.store.config import Config, Count
from tokflow.store.manifest import Manifest

CSV_SCHEMA = pa.schema(
    [
        pa.field("start", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("src", pa.string()),
        pa.field("loc", pa.int64()),
    ]
)

DOCUMENT = np.dtype([("file", "<i8"), ("row", "<i8"), ("num_tokens", "<i8")])
"""A document of the part: the ordinal of its file among the part's splits, and its row in it."""

LINES_AT_ONCE = 2**18

GZIP_LEVEL = 3
"""A million lines of 81 bytes take 1.2 s and leave 12 MB; at level 9, 12 s and 11 MB."""


class OlmoOptions(Config):
    """Options of the olmo format."""

    tokens_per_file: Count = 500_000_000
    """Most tokens of a file (max_size), whole documents in each."""


def write(parts: Sequence[Part], options: OlmoOptions, folder: Path) -> Counts:
    """Write each part into a folder of its own; a part without tokens has none."""
    counts: Counts = {}
    for part in parts:
        counts |= _write_part(part, options, folder / part.name)
    return counts


def _write_part(part: Part, options: OlmoOptions, folder: Path) -> Counts:
    num_tokens = num_documents = num_loss_tokens = 0
    raw_files = [str(split.manifest.partition) for split in part.splits]
    shards = [
        *cut_by_documents(
            part, tokens_per_file=options.tokens_per_file, where="olmo", has_loss_mask=True
        )
    ]
    documents = cut_runs(_documents(part), [len(shard.lengths) for shard in shards])
    for shard, described in zip(shards, documents, strict=True):
        folder.mkdir(exist_ok=True)
        num_tokens += write_numbers(folder / _tokens_name(shard.number), shard.tokens)
        num_documents += _write_lines(folder / _lines_name(shard.number), described, raw_files)
        if shard.loss_mask is not None:
            num_loss_tokens += write_mask(folder / _mask_name(shard.number), shard.loss_mask)
    return counts_of_stream(
        part,
        num_tokens=num_tokens,
        num_documents=num_documents,
        num_loss_tokens=num_loss_tokens,
    )


def _tokens_name(number: int) -> str:
    return f"part-0-{number:05d}.npy"


def _lines_name(number: int) -> str:
    return f"part-0-{number:05d}.csv.gz"


def _mask_name(number: int) -> str:
    return f"labels_mask-0-{number:05d}.npy"


def _documents(part: Part) -> Iterator[npt.NDArray[Any]]:
    """Yield the documents of one file at a time, as DOCUMENT."""
    for ordinal, of_file in enumerate(part.documents()):
        documents = np.empty(len(of_file.row), dtype=DOCUMENT)
        documents["file"] = ordinal
        documents["row"] = of_file.row
        documents["num_tokens"] = of_file.num_tokens
        yield documents


def _write_lines(path: Path, runs: Iterator[npt.NDArray[Any]], raw_files: Sequence[str]) -> int:
    """Write a line for each document that has tokens; return how many. A run is of one file."""
    num_documents = position = 0
    with path.open("wb") as raw, _open_gzip(raw) as file:
        for run in runs:
            some = run[run["num_tokens"] > 0]
            for first in range(0, len(some), LINES_AT_ONCE):
                documents = some[first : first + LINES_AT_ONCE]
                ends = position + np.cumsum(documents["num_tokens"])
                file.write(_lines(documents, ends, raw_files[documents["file"][0]]))
                position = int(ends[-1])
            num_documents += len(some)
    return num_documents


def _open_gzip(raw: BinaryIO) -> gzip.GzipFile:
    """Open a file that says neither when it was made nor what it is called."""
    return gzip.GzipFile(filename="", mode="wb", compresslevel=GZIP_LEVEL, fileobj=raw, mtime=0)


def _lines(documents: npt.NDArray[Any], ends: npt.NDArray[np.int64], raw_file: str) -> bytes:
    num = len(documents)
    rows = to_arrow(documents["row"]).cast(pa.string())
    columns = {
        "start": ends - documents["num_tokens"],
        "end": ends,
        "id": pc.binary_join_element_wise(repeated(f"{raw_file}:", num), rows, repeated("", num)),
        "src": repeated(raw_file, num),
        "loc": documents["row"] + 1,
    }
    needs_quotes = any(mark in raw_file for mark in ',"\r\n')
    lines = io.BytesIO()
    quoting = "needed" if needs_quotes else "none"  # needed: round every text
    options = csv.WriteOptions(include_header=False, quoting_style=quoting)
    csv.write_csv(make_table(columns, CSV_SCHEMA), lines, options)
    return lines.getvalue()


def read(folder: Path, manifest: Manifest, part: str) -> Iterator[Arrays]:
    """Yield the fields of a part, a file at a time; token ids and loss mask memory-mapped.

    Raises: CorruptOutputError where the lines of a file are not about all of its tokens.
    """
    names = numbered(manifest, lambda number: f"{part}/{_tokens_name(number)}")
    for number, name in enumerate(names):
        tokens = np.memmap(folder / name, dtype=manifest.details["dtype"], mode="r")
        fields: Arrays = {
            "token_ids": tokens,
            "offsets": _read_offsets(folder / part / _lines_name(number), len(tokens)),
        }
        if f"{part}/{_mask_name(number)}" in manifest.files:
            mask = np.memmap(folder / part / _mask_name(number), dtype=bool, mode="r")
            fields["loss_mask"] = mask
        yield fields


def _read_offsets(path: Path, num_tokens: int) -> npt.NDArray[np.int64]:
    names = CSV_SCHEMA.names
    table = csv.read_csv(
        path,
        read_options=csv.ReadOptions(column_names=names),
        convert_options=csv.ConvertOptions(
            include_columns=names[:2],
            column_types={name: CSV_SCHEMA.field(name).type for name in names[:2]},
        ),
    )
    starts, ends = to_numpy(table["start"]), to_numpy(table["end"])
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), ends])
    if (starts != offsets[:-1]).any() or offsets[-1] != num_tokens:
        raise CorruptOutputError(
            where=path,
            expected=f"documents end to end, {num_tokens:,} tokens in all",
            found=f"{len(ends):,} that are not, or end at {offsets[-1]:,}",
            remedy="delete the export and run again",
        )
    return offsets


FORMAT = Format(
    description="OLMo: <part>/part-0-<i>.npy of raw tokens, a .csv.gz of documents and, of chats, "
    "labels_mask-0-<i>.npy",
    options=OlmoOptions,
    layout=fixed(
        Layout(made_of="stream", keeps=("token_ids", "offsets", "loss_mask"), leaves_out_empty=True)
    ),
    write=write,
    read=read,
)

"""Lance datasets, a folder for each part: one token per row, or one sequence per row.

    layout: stream       tokens end to end, as Lance's example of training a language model reads
                         them: a sampler gives the first row of a block, `take` its rows
    <part>.lance              input_ids     int64
                              loss_mask     bool    of chats alone
    <part>.documents.lance    token_offset  int64   one document per row: its first token
                              num_tokens    int64
    layout: sequences    a row of 1,024 tokens takes 0.14 ms, 16 at a time, where a block of the
                         stream takes 0.8; 12 bytes per token, for such lists are not compressed
    <part>.lance              input_ids     fixed_size_list<int32>[sequence_length]; so are
                              segment_ids   int32   1, 2, ... in each row; 0 is padding
                              position_ids  int32   0 at each segment's first token
                              loss_mask     int8    of chats alone; of others all are loss tokens
    lost    nothing

A folder holds data/00000.lance and so on, and one commit. Lance
gives data files random names, and here they are counted: their bytes depend on the input and on
the version of pylance. The commit, `_versions/*.manifest`, has the time at which Lance made it, so
that this file, and its checksum in the manifest, differ from run to run.

Source: pylance 14.0.2, lance/fragment.py `write_fragments`, lance/dataset.py `commit`.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.exports import Arrays, Export, Extra, FileFacts, Format, Layout, Part, Portion
from tokflow.exports.columns import TYPES, fields_of, lists_of
from tokflow.exports.options import ByFileOptions, PartRows, batches_of, cut, equal_sizes
from tokflow.exports.token_files import batches_of_documents, files_of, sequences_within
from tokflow.sequences.segments import Sequences
from tokflow.store.config import Size
from tokflow.store.tables import make_table, offsets_of, one_array, to_arrow, to_numpy

EXTRA = Extra(name="lance", module="lance")

TOKENS_AT_ONCE = 2**20
"""Tokens handed to Lance at one go, on which its pages depend; read, in whole documents."""

TOKENS_PER_FILE = 100_000_000
"""Default size of a data file."""

MAX_ROWS_PER_FILE = 2**32 - 1
"""Lance counts the rows of a file in 32 bits."""

NO_ID = "00000000-0000-0000-0000-000000000000"

STREAM = {"input_ids": pa.int64(), "loss_mask": pa.bool_()}
DOCUMENTS = pa.schema({"token_offset": pa.int64(), "num_tokens": pa.int64()})
SEQUENCES = ("input_ids", "segment_ids", "position_ids", "loss_mask")
"""The columns of each dataset; loss_mask of chats alone."""


class LanceOptions(ByFileOptions):
    """Lance: <part>.lance, one token per row, or one sequence per row."""

    layout: Literal["stream", "sequences"] = "stream"
    """stream: one token per row; sequences: one sequence per row."""
    shard_size: Size | None = None
    """Most bytes of a data file, such as 500MB, before Lance compresses it (max_bytes_per_file).
    Default: 100 million tokens."""


def layout(options: LanceOptions) -> Layout:
    """Return what the files hold."""
    if options.layout == "stream":
        return Layout(made_of="stream", keeps=("token_ids", "offsets", "loss_mask"))
    keeps = ("token_ids", "segment_ids", "position_ids", "loss_mask")
    return Layout(made_of="sequences", keeps=keeps)


def write(part: Part, options: LanceOptions, folder: Path) -> Iterator[FileFacts]:
    """Write the data files of a part."""
    write_part = _write_stream if options.layout == "stream" else _write_sequences
    return write_part(part, options, folder)


def _sizes_of_stream(num_tokens: int, options: LanceOptions) -> list[int]:
    """Return the rows of each data file."""
    most = MAX_ROWS_PER_FILE
    return options.sizes(num_tokens, 8, TOKENS_PER_FILE, most=most, unit="rows")


def _sizes_of_rows(rows: PartRows, options: LanceOptions) -> list[int]:
    row_bytes = (12 + rows.has_loss_mask) * rows.sequence_length
    usual = sequences_within(TOKENS_PER_FILE, rows.sequence_length)
    return options.sizes(rows, row_bytes, usual, most=MAX_ROWS_PER_FILE)


def _schema(part: Part, options: LanceOptions) -> pa.Schema:
    """Return the columns of a part; loss_mask of chats alone."""
    lists = {name: pa.list_(TYPES[name], part.sequence_length) for name in SEQUENCES}
    columns = STREAM if options.layout == "stream" else lists
    return pa.schema([of for of in columns.items() if of[0] != "loss_mask" or part.has_loss_mask])


def _write_stream(part: Part, options: LanceOptions, folder: Path) -> Iterator[FileFacts]:
    schema = _schema(part, options)
    tokens = batches_of(part.stream(), part.num_tokens, TOKENS_AT_ONCE)
    columns = [(array.astype(np.int64) for array in tokens)]
    if part.has_loss_mask:
        masks = batches_of(part.stream_loss_mask(), part.num_tokens, TOKENS_AT_ONCE)
        columns.append(array.astype(bool) for array in masks)
    rows = (map(to_arrow, arrays) for arrays in zip(*columns, strict=True))
    batches = (pa.record_batch([*of], schema=schema) for of in rows)
    sizes = _sizes_of_stream(part.num_tokens, options)
    path, files = folder / f"{part.name}.lance", cut(batches, sizes)
    for number, (size, of_file) in enumerate(zip(sizes, files, strict=True), part.first_number):
        yield _write_file(path, number, schema, of_file, size)


def _write_sequences(part: Part, options: LanceOptions, folder: Path) -> Iterator[FileFacts]:
    schema, sizes = _schema(part, options), _sizes_of_rows(part.rows, options)
    at_once = sequences_within(TOKENS_AT_ONCE, part.sequence_length)
    for number, some in files_of(part, sizes, options, at_once):
        batches = (_batch(sequences, schema) for sequences in some)
        yield _write_file(folder / f"{part.name}.lance", number, schema, batches, sizes[number])


def _batch(sequences: Sequences, schema: pa.Schema) -> pa.RecordBatch:
    columns = [to_arrow(lists_of(sequences, of.name)[0]) for of in schema]
    lists = (
        pa.FixedSizeListArray.from_arrays(values, type=of.type)
        for values, of in zip(columns, schema, strict=True)
    )
    return pa.record_batch([*lists], schema=schema)


def finish(parts: Sequence[Part], options: LanceOptions, folder: Path) -> None:
    """Write the commit of each part and, of a stream, its documents."""
    for part in parts:
        _commit(folder / f"{part.name}.lance", _schema(part, options), part.files)
        if options.layout == "stream":
            lengths, path = part.document_lengths(), folder / f"{part.name}.documents.lance"
            columns = {"token_offset": offsets_of(lengths)[:-1], "num_tokens": lengths}
            table = make_table(columns, DOCUMENTS)
            batches = iter(table.to_batches(max_chunksize=TOKENS_AT_ONCE))
            sizes = equal_sizes(len(lengths), TOKENS_PER_FILE)
            files = [
                _write_file(path, number, DOCUMENTS, some, size)
                for number, (size, some) in enumerate(zip(sizes, cut(batches, sizes), strict=True))
            ]
            _commit(path, DOCUMENTS, files)


def _write_file(
    path: Path, number: int, schema: pa.Schema, batches: Iterator[pa.RecordBatch], size: int
) -> dict[str, Any]:
    """Write the data file of this number, of so many rows, of the dataset at `path`; return the
    fragment that it is, whose file has the random name that Lance gave it."""
    lance = EXTRA.load()
    failure: Exception | None = None

    def rows() -> Iterator[pa.RecordBatch]:
        nonlocal failure
        try:
            yield from batches
        except Exception as error:
            failure = error
            raise

    try:
        reader = pa.RecordBatchReader.from_batches(schema, rows())
        [fragment] = lance.fragment.write_fragments(
            reader, str(path), schema, mode="create", max_rows_per_file=size
        )
    except OSError as error:  # so Lance calls whatever happens while rows are made, too
        raise failure or error from None
    facts: dict[str, Any] = fragment.to_json()
    [file] = facts["files"]
    (path / "data" / file.pop("path")).rename(path / _name(number))
    return facts


def _name(number: int) -> str:
    return f"data/{number:05d}.lance"


def _commit(path: Path, schema: pa.Schema, files: Sequence[FileFacts]) -> None:
    """Write the one commit of a dataset with these data files."""
    lance = EXTRA.load()
    fragments = []
    for number, facts in enumerate(files):
        [file] = facts["files"]
        named = {**facts, "files": [{**file, "path": Path(_name(number)).name}]}
        fragments.append(lance.fragment.FragmentMetadata.from_json(json.dumps(named)))
    commit = lance.Transaction(
        read_version=0, operation=lance.LanceOperation.Overwrite(schema, fragments), uuid=NO_ID
    )
    lance.LanceDataset.commit(str(path), commit)


def portions(export: Export, part: str) -> list[Portion]:
    """Return some million tokens of a part each, documents whole."""
    if not (files := export.names_below(f"{part}.lance")):
        return []
    data = sorted(of for of in files if of.startswith(f"{part}.lance/data/"))
    documents = export.names_below(f"{part}.documents.lance")
    export.stored.fetch([*(of for of in files if of not in data), *documents])
    lance, counts = EXTRA.load(), export.counts
    dataset = lance.dataset(str(export.folder / f"{part}.lance"))
    stretches: list[tuple[slice, npt.NDArray[np.int64] | None]]
    if export.layout.is_packed:
        num = sequences_within(TOKENS_AT_ONCE, export.manifest.details["sequence_length"])
        sizes = _sizes_of_rows(export.rows(part), export.options)
        total = counts[f"{part}.num_sequences"]
        stretches = [(slice(at, min(at + num, total)), None) for at in range(0, total, num)]
    else:
        table = lance.dataset(str(export.folder / f"{part}.documents.lance"))
        lengths = to_numpy(table.to_table(["num_tokens"])["num_tokens"])
        sizes = [facts["physical_rows"] for facts in export.facts(part)]
        sizes = sizes or _sizes_of_stream(counts[f"{part}.num_tokens"], export.options)
        stretches = [*batches_of_documents(lengths, TOKENS_AT_ONCE)]
    found, edges = [], [0, *accumulate(sizes)]
    for rows, offsets in stretches:
        # The data files that have some of the rows.
        files = data[bisect_right(edges, rows.start) - 1 : bisect_left(edges, rows.stop)]
        load = partial(_load, dataset, export, rows, offsets)
        num = rows.stop - rows.start
        found.append(Portion(export.stored, tuple(files), num, load, offsets=offsets))
    return found


def _load(
    dataset: Any, export: Export, rows: slice, offsets: npt.NDArray[np.int64] | None
) -> Arrays:
    table = dataset.to_table(offset=rows.start, limit=rows.stop - rows.start)
    if offsets is not None:
        fields = {name: to_numpy(table[name]) for name in table.schema.names}
        return {"token_ids": fields.pop("input_ids"), "offsets": offsets, **fields}
    num_values = np.full(len(table), export.manifest.details["sequence_length"])
    columns = {name: one_array(table[name]).flatten() for name in table.schema.names}
    return fields_of(
        {name: (to_numpy(values), num_values) for name, values in columns.items()}, export
    )


FORMAT = Format(
    LanceOptions,
    layout,
    write,
    lambda part, number, *_: f"{part}.lance/{_name(number)}",
    portions=portions,
    finish=finish,
    sizes=lambda rows, options: (
        _sizes_of_rows(rows, options) if options.layout == "sequences" else None
    ),
    token_bytes=8,
    extra=EXTRA,
    has_time=lambda name: "/_versions/" in name,
)

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
                              loss_mask     int8    of chats alone; of others all tokens are learnt
    lost    nothing

A folder holds data/00000.lance and so on, `max_rows_per_file` rows each, and one commit. Lance
gives files random names, and commits a random id and the time; here files are counted, the id is
zero and the time is left out, so that a reader sees 1970. The bytes depend on the input and on
the version of pylance, which Lance writes into its manifest.

Source: pylance 14.0.2, lance/fragment.py `write_fragments`, lance/dataset.py `commit`;
lancedb/lance at 01d8e75, protos/table.proto, for the time of a commit.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
)

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from tokflow.errors import CorruptOutputError
from tokflow.exports.extras import Extra, import_extra
from tokflow.exports.format import (
    Arrays,
    Counts,
    Format,
    Layout,
    counts_of_rows,
    counts_of_stream,
)
from tokflow.exports.part import Part
from tokflow.exports.shards import blocks_of, cut_runs, rows_within, sizes_by_documents
from tokflow.exports.token_files import document_lengths, offsets_of
from tokflow.sequences.segments import Sequences
from tokflow.store.arrow import to_arrow, to_numpy
from tokflow.store.config import Config
from tokflow.store.manifest import Manifest

EXTRA = Extra(name="lance", module="lance")

TOKENS_AT_ONCE = 2**20
"""Tokens handed to Lance at one go, on which its pages depend; read, in whole documents."""

ROWS_AHEAD = {
    "batch_size": 2**16,
    "batch_readahead": 1,
    "fragment_readahead": 1,
    "io_buffer_size": 2**24,
}
"""What Lance may have in memory beside what is asked for: 200 MB, and not 400 as by default."""

TOKENS_PER_FILE = 100_000_000
"""Of a data file, unless the options say how many rows."""

MAX_ROWS_PER_FILE = 2**32 - 1
"""Lance counts the rows of a file in 32 bits."""

NO_ID = "00000000-0000-0000-0000-000000000000"

TIME_FIELD = 7
"""Number of `timestamp` in Lance's message Manifest."""

STREAM = {"input_ids": pa.int64(), "loss_mask": pa.bool_()}
DOCUMENTS = {"token_offset": pa.int64(), "num_tokens": pa.int64()}
SEQUENCES = {
    "input_ids": pa.int32(),
    "segment_ids": pa.int32(),
    "position_ids": pa.int32(),
    "loss_mask": pa.int8(),
}
"""The columns of each dataset; loss_mask of chats alone."""


class LanceOptions(Config):
    """Options of the lance format."""

    layout: Literal["stream", "sequences"] = "stream"
    """stream: one token per row; sequences: one sequence per row."""
    max_rows_per_file: Annotated[
        int | None, Field(ge=1, le=MAX_ROWS_PER_FILE), "for Lance counts them in 32 bits"
    ] = None
    """Rows of a data file; default: as many as hold 100 million tokens."""


def layout(options: LanceOptions) -> Layout:
    """Return what the files hold."""
    if options.layout == "stream":
        return Layout(made_of="stream", keeps=("token_ids", "offsets", "loss_mask"))
    keeps = ("token_ids", "segment_ids", "position_ids", "loss_mask")
    return Layout(made_of="sequences", keeps=keeps)


def write(parts: Sequence[Part], options: LanceOptions, folder: Path) -> Counts:
    """Write the datasets of each part; a part without tokens has none."""
    counts: Counts = {}
    write_part = _write_stream if options.layout == "stream" else _write_sequences
    for part in parts:
        counts |= write_part(part, options.max_rows_per_file, folder)
    return counts


class _Batch(NamedTuple):
    rows: pa.RecordBatch
    num_tokens: int
    num_loss_tokens: int = 0


def _write_stream(part: Part, rows_per_file: int | None, folder: Path) -> Counts:
    num_tokens = num_loss_tokens = num_documents = 0
    if part.num_tokens:
        per_file = rows_per_file or TOKENS_PER_FILE
        path = folder / f"{part.name}.lance"
        schema = pa.schema([f for f in STREAM.items() if f[0] != "loss_mask" or part.has_loss_mask])
        batches = _token_batches(part, schema)
        num_tokens, num_loss_tokens = _write_dataset(path, schema, batches, per_file)
        lengths = document_lengths(part)
        num_documents = len(lengths)
        path = folder / f"{part.name}.documents.lance"
        schema = pa.schema(list(DOCUMENTS.items()))
        _write_dataset(path, schema, _document_batches(lengths, schema), per_file)
    return counts_of_stream(
        part,
        num_tokens=num_tokens,
        num_documents=num_documents,
        num_loss_tokens=num_loss_tokens,
    )


def _token_batches(part: Part, schema: pa.Schema) -> Iterator[_Batch]:
    total = part.num_tokens
    masked = part.has_loss_mask
    masks = blocks_of(part.stream_loss_mask(), total, TOKENS_AT_ONCE) if masked else None
    for token_ids in blocks_of(part.stream(), total, TOKENS_AT_ONCE):
        columns = [to_arrow(token_ids.astype(np.int64))]
        if masks is not None:
            columns.append(to_arrow(next(masks).astype(bool)))
        rows = pa.record_batch(columns, schema=schema)
        yield _Batch(rows, len(token_ids), columns[1].true_count if masks is not None else 0)


def _document_batches(lengths: npt.NDArray[np.int64], schema: pa.Schema) -> Iterator[_Batch]:
    starts = offsets_of(lengths)
    for first in range(0, len(lengths), TOKENS_AT_ONCE):
        some = slice(first, min(first + TOKENS_AT_ONCE, len(lengths)))
        columns = [to_arrow(starts[some]), to_arrow(lengths[some])]
        yield _Batch(pa.record_batch(columns, schema=schema), 0)


def _write_sequences(part: Part, rows_per_file: int | None, folder: Path) -> Counts:
    num_tokens = num_loss_tokens = 0
    if part.num_sequences:
        length = part.sequence_length
        at_once = rows_within(TOKENS_AT_ONCE, length)
        schema = pa.schema(
            pa.field(name, pa.list_(type_, length))
            for name, type_ in SEQUENCES.items()
            if name != "loss_mask" or part.has_loss_mask
        )
        num_tokens, num_loss_tokens = _write_dataset(
            folder / f"{part.name}.lance",
            schema,
            (_sequence_batch(rows, schema) for rows in part.sequences(at_once)),
            rows_per_file or rows_within(TOKENS_PER_FILE, length),
        )
    return counts_of_rows(
        part,
        num_sequences=part.num_sequences,
        num_tokens=num_tokens,
        num_loss_tokens=num_loss_tokens,
    )


def _sequence_batch(rows: Sequences, schema: pa.Schema) -> _Batch:
    columns = [
        pa.FixedSizeListArray.from_arrays(
            to_arrow(
                getattr(rows, "token_ids" if field.name == "input_ids" else field.name)
                .astype(field.type.value_type.to_pandas_dtype(), copy=False)
                .reshape(-1)
            ),
            type=field.type,
        )
        for field in schema
    ]
    return _Batch(
        pa.record_batch(columns, schema=schema),
        int(np.count_nonzero(rows.segment_ids)),
        int(np.count_nonzero(rows.loss_mask)),
    )


def _write_dataset(
    path: Path, schema: pa.Schema, batches: Iterator[_Batch], rows_per_file: int
) -> tuple[int, int]:
    """Write a dataset of one commit; return its tokens, and those of them that are learnt."""
    lance = _lance()
    num_tokens = num_loss_tokens = 0
    failure: Exception | None = None

    def rows() -> Iterator[pa.RecordBatch]:
        nonlocal num_tokens, num_loss_tokens, failure
        try:
            for batch in batches:
                num_tokens += batch.num_tokens
                num_loss_tokens += batch.num_loss_tokens
                yield batch.rows
        except Exception as error:
            failure = error
            raise

    reader = pa.RecordBatchReader.from_batches(schema, rows())
    try:
        fragments = lance.fragment.write_fragments(
            reader, str(path), schema, mode="create", max_rows_per_file=rows_per_file
        )
    except OSError as error:  # so Lance calls whatever happens while rows are made, too
        raise failure or error from None
    fragments = [_counted(fragment, number, path) for number, fragment in enumerate(fragments)]
    commit = lance.Transaction(
        read_version=0, operation=lance.LanceOperation.Overwrite(schema, fragments), uuid=NO_ID
    )
    lance.LanceDataset.commit(str(path), commit)
    [manifest] = (path / "_versions").glob("*.manifest")
    _leave_out_time(manifest)
    return num_tokens, num_loss_tokens


def _lance() -> Any:
    return import_extra(EXTRA.module, extra=EXTRA.name, where="exports: lance")


def _counted(fragment: Any, number: int, path: Path) -> Any:
    """Return a fragment whose data file has a number for its random name, and rename the file."""
    fields = fragment.to_json()
    [file] = fields["files"]
    (path / "data" / file["path"]).rename(path / "data" / f"{number:05d}.lance")
    file["path"] = f"{number:05d}.lance"
    return type(fragment).from_json(json.dumps(fields))


def _leave_out_time(path: Path) -> None:
    """Write the manifest of a commit again without the time.

    At its end stand the position of the message (8 bytes), the version (4) and LANC (4); at that
    position the size of the message (4), then the message.

    Raises: CorruptOutputError where it looks otherwise.
    """
    data = path.read_bytes()
    start = int.from_bytes(data[-16:-8], "little")
    size = int.from_bytes(data[start : start + 4], "little")
    message, footer = data[start + 4 : -16], data[-16:]
    if footer[-4:] != b"LANC" or len(message) != size:
        raise CorruptOutputError(
            where=path,
            expected="a manifest as pylance 14 writes it",
            found=f"one that ends with {footer!r}",
            remedy=f'run `pip install "dagster-tokflow[{EXTRA.name}]"`',
        )
    kept = b"".join(field for number, field in _fields(message) if number != TIME_FIELD)
    path.write_bytes(data[:start] + len(kept).to_bytes(4, "little") + kept + footer)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each field of a protobuf message.

    A field is a varint, 8 times its number plus its kind, then by kind 0: a varint, 1: 8 bytes,
    2: as many bytes as a varint says, 5: 4 bytes.
    """
    position = 0
    while position < len(message):
        key, end = _varint(message, position)
        if key % 8 == 2:
            size, end = _varint(message, end)
            end += size
        elif key % 8 == 0:
            _, end = _varint(message, end)
        else:
            end += {1: 8, 5: 4}[key % 8]
        yield key // 8, message[position:end]
        position = end


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, 7 bits in each byte, lowest first, and where it ends."""
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position


def read(folder: Path, manifest: Manifest, part: str) -> Iterator[Arrays]:
    """Yield the fields of a part, some million tokens at a time, documents whole."""
    if not any(name.startswith(f"{part}.lance/") for name in manifest.files):
        return
    lance, dtype = _lance(), manifest.details["dtype"]
    dataset = lance.dataset(str(folder / f"{part}.lance"))
    if manifest.config["options"]["layout"] == "stream":
        documents = lance.dataset(str(folder / f"{part}.documents.lance"))
        yield from _read_stream(dataset, documents, dtype)
    else:
        yield from _read_sequences(dataset, manifest.details["sequence_length"], dtype)


def _read_sequences(dataset: Any, length: int, dtype: str) -> Iterator[Arrays]:
    at_once = rows_within(TOKENS_AT_ONCE, length)
    for batch in dataset.to_batches(**{**ROWS_AHEAD, "batch_size": at_once}):
        column = {
            name: to_numpy(batch[name].flatten()).reshape(-1, length) for name in batch.schema.names
        }
        yield {
            "token_ids": column["input_ids"].astype(dtype),
            "segment_ids": column["segment_ids"],
            "position_ids": column["position_ids"],
            "loss_mask": column.get("loss_mask", column["segment_ids"]) != 0,
        }


def _read_stream(dataset: Any, documents: Any, dtype: str) -> Iterator[Arrays]:
    lengths = to_numpy(documents.to_table(["num_tokens"])["num_tokens"])
    sizes, counts = sizes_by_documents(lengths, TOKENS_AT_ONCE)
    columns = {
        name: cut_runs(_scanned(dataset, name), sizes.tolist()) for name in dataset.schema.names
    }
    edges = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)]).tolist()
    for first, stop in pairwise(edges):
        fields = {name: np.concatenate(list(next(runs))) for name, runs in columns.items()}
        yield {
            "token_ids": fields.pop("input_ids").astype(dtype),
            "offsets": offsets_of(lengths[first:stop]),
            **fields,
        }


def _scanned(dataset: Any, name: str) -> Iterator[npt.NDArray[Any]]:
    for batch in dataset.to_batches([name], **ROWS_AHEAD):
        yield to_numpy(batch[name])


FORMAT = Format(
    description="Lance: <part>.lance, one token per row, or one sequence per row",
    options=LanceOptions,
    layout=layout,
    write=write,
    read=read,
    extra=EXTRA,
)

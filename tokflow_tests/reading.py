"""The documents of one raw file, and files of records in every format."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokflow.documents import Batch, DocumentsConfig, DocumentSource, Reject
from tokflow.documents.ranges import Range

PLAIN = DocumentsConfig()
LINES = DocumentsConfig(document_per="line")


def read_documents(
    path: Path,
    config: DocumentsConfig,
    *,
    on_reject: Callable[[Reject], None] | None = None,
    within: Range | None = None,
    **how: Any,
) -> Iterator[Batch]:
    heard = None if on_reject is None else (lambda _, reject: on_reject(reject))
    return DocumentSource([path], config, within=within).batches(on_reject=heard, **how)


def read(path: Path, config: DocumentsConfig = PLAIN, **how: Any) -> list[Batch]:
    return list(read_documents(path, config, **how))


def texts_in(batches: Sequence[Batch]) -> list[str]:
    return [text for batch in batches for text in batch.texts.to_pylist()]


def rows_in(batches: Sequence[Batch]) -> list[int]:
    return [row for batch in batches for row in batch.rows.tolist()]


def texts_of(path: Path, config: DocumentsConfig = PLAIN, **how: Any) -> list[str]:
    return texts_in(read(path, config, **how))


def write_table(path: Path, table: pa.Table, *, rows: int = 2, **options: Any) -> Path:
    """Write a table in row groups or record batches; .ipc is a stream."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows, **options)
    else:
        new = pa.ipc.new_stream if path.suffix == ".ipc" else pa.ipc.new_file
        with new(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
    return path


def write_records(path: Path, records: list[dict[str, Any]], *, rows: int = 2) -> Path:
    """Write records in the format of the suffix; txt has lines of `text`."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif path.suffix == ".txt":
        path.write_text("".join(record["text"] + "\n" for record in records))
    elif path.suffix in (".csv", ".tsv"):
        lines = [list(records[0]), *(list(map(str, record.values())) for record in records)]
        joint = {".csv": ",", ".tsv": "\t"}[path.suffix]
        path.write_text("".join(joint.join(line) + "\n" for line in lines))
    else:
        write_table(path, pa.Table.from_pylist(records), rows=rows)
    return path


def in_blocks(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Cut bytes into blocks of these sizes and what is left, of which none is empty."""
    edges = [0, *accumulate(sizes), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges) if start < min(stop, len(data))]

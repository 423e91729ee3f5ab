"""pylance, as a training loop opens a dataset.

A stream is read as Lance's own example of training a language model does: a sampler gives the
first row of each block, `take` its rows. Sequences are read by `take`, a few rows at a time, and
as torch does, which asks for numpy.
"""

import lance
import numpy as np
import pyarrow as pa
from peer_command import each, run

ROWS_PER_TAKE = 3


def read(folder, part, *, layout="stream", block_size=8):
    """Return the rows, and what the dataset says of itself.

    A stream gives its tokens twice: taken block by block, and scanned from end to end; `layout:
    documents` is a stream, and where its documents are.
    """
    dataset = lance.dataset(str(folder / f"{part}.lance"))
    dataset.validate()
    arrays = sequences(dataset) if layout == "sequences" else stream(dataset, block_size)
    if layout == "documents":
        table = lance.dataset(str(folder / f"{part}.documents.lance")).to_table()
        arrays |= {name: table[name].to_numpy() for name in table.column_names}
    fragments = dataset.get_fragments()
    return {
        **arrays,
        "types": np.array([f"{field.name}: {field.type}" for field in dataset.schema]),
        "rows_per_file": np.array([fragment.count_rows() for fragment in fragments]),
        "num_versions": np.array(len(dataset.versions())),
    }


def stream(dataset, block_size):
    num_rows = dataset.count_rows()
    starts = list(range(0, num_rows - block_size, block_size))
    stops = [*starts[1:], num_rows] if starts else []
    blocks = [
        dataset.take(np.arange(start, stop))["input_ids"].to_numpy()
        for start, stop in zip(starts, stops, strict=True)
    ]
    scanned = dataset.to_table()["input_ids"].to_numpy()
    return {"token_ids": np.concatenate(blocks) if blocks else scanned, "again": scanned}


def sequences(dataset):
    num_rows = dataset.count_rows()
    takes = [
        dataset.take(list(range(start, min(start + ROWS_PER_TAKE, num_rows))))
        for start in range(0, num_rows, ROWS_PER_TAKE)
    ]
    table = pa.concat_tables(takes).combine_chunks()
    return {
        "rows" if name == "input_ids" else name: as_rows(table[name]) for name in table.column_names
    }


def as_rows(column):
    [values] = column.chunks
    return values.flatten().to_numpy().reshape(len(values), -1)


def write(documents, folder):
    """Write a stream as the example does: a reader of batches, here one per document."""
    schema = pa.schema([pa.field("input_ids", pa.int64())])
    batches = (pa.record_batch([pa.array(ids)], schema=schema) for ids in each(documents))
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    lance.write_dataset(reader, str(folder / "train.lance"), schema)


if __name__ == "__main__":
    run(read=read, write=write)

"""The index of an export: from each run of its tokens back to the document they are of."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.arrays import make_table, repeated, to_numpy
from tokflow.spans import Split

INDEX_SCHEMA = pa.schema(
    [
        pa.field("part", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("num_tokens", pa.int64(), nullable=False),
        pa.field("raw_file", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("char_start", pa.int64(), nullable=False),
        pa.field("token_in_piece", pa.int64(), nullable=False),
    ]
)
"""Leads any token of an export back to its text; one row per run of tokens of one document.
position: of the run's first token in the part (in a format of sequences: sequence ordinal times
sequence_length plus column). raw_file and row: the document. char_start: code points of the
document before the text that was tokenized (0 unless the split cut it); token_in_piece: tokens
of that text before the run."""

INDEX_ROWS_AT_ONCE = 2**20
"""Rows of one table of the index, and so of one row group."""


def index_tables(
    part: str,
    split: Split,
    *,
    document: npt.NDArray[np.int64],
    num_tokens: npt.NDArray[np.int64],
    **columns: npt.NDArray[np.int64],
) -> Iterator[pa.Table]:
    """Yield the index of runs of tokens of one file; a run of no tokens has no row in it."""
    is_some = num_tokens > 0
    if not is_some.any():
        return
    row = to_numpy(split.shard.documents(["row"])["row"])[document]
    whole = {"row": row, "num_tokens": num_tokens, **columns}
    if not is_some.all():
        whole = {name: values[is_some] for name, values in whole.items()}
    raw_file = str(split.manifest.partition)
    for first in range(0, len(whole["row"]), INDEX_ROWS_AT_ONCE):
        some = {name: values[first : first + INDEX_ROWS_AT_ONCE] for name, values in whole.items()}
        num = len(some["row"])
        names = {"part": repeated(part, num), "raw_file": repeated(raw_file, num)}
        yield make_table({**names, **some}, INDEX_SCHEMA)

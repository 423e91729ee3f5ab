"""documents.parquet: a row for each document of a token shard."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from tokflow.tokenizers.engines.protocol import text_buffers

DOCUMENTS_SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("char_offset", pa.int64(), nullable=False),
        pa.field("num_chars", pa.int64(), nullable=False),
        pa.field("token_offset", pa.int64(), nullable=False),
        pa.field("num_tokens", pa.int64(), nullable=False),
        pa.field("text_hash", pa.binary(16), nullable=False),
    ]
)
"""One row per document. row: ordinal in the raw file (rejects leave a gap); char_offset: code
points before it in the file's accepted documents; token_offset: tokens before it in tokens.bin;
num_tokens: with BOS and EOS; text_hash: xxh3-128 of the UTF-8 text, big-endian."""

RECORDS_SCHEMA = DOCUMENTS_SCHEMA.append(pa.field("record", pa.int64(), nullable=False))
"""The same of documents that a transform made; record: the ordinal in the raw file of the record
that it was made of, where `row` counts what was made: of each record its documents, or one row
where it is left out or bad."""

ROWS_PER_GROUP = 65_536


def text_hashes(texts: pa.LargeStringArray) -> pa.FixedSizeBinaryArray:
    """Return the xxh3-128 of the UTF-8 of each text, big-endian."""
    offsets, data = text_buffers(texts)
    view = data.data
    hashes = b"".join(
        xxhash.xxh3_128_digest(view[start:stop]) for start, stop in pairwise(offsets.tolist())
    )
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(texts), [None, pa.py_buffer(hashes)]
    )


def hashes_as_array(hashes: pa.FixedSizeBinaryArray) -> npt.NDArray[np.void]:
    """Return text hashes as an array of 16 bytes each, which shares their memory."""
    array = np.frombuffer(hashes.buffers()[1] or b"", dtype="V16")
    return array[hashes.offset : hashes.offset + len(hashes)]

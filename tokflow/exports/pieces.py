"""Arrays of an export as they are read: in pieces, and as the columns of a table."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.exports.format import Arrays, Layout
from tokflow.exports.index import read_segments
from tokflow.exports.token_files import batches_of_documents
from tokflow.store.store import StoredOutput
from tokflow.store.tables import offsets_of, to_arrow, to_numpy

TOKENS_AT_ONCE = 2**22
"""Most tokens converted to another dtype at one go; documents stay whole."""


def pieces(fields: Arrays, layout: Layout, dtype: np.dtype[Any]) -> Iterator[Arrays]:
    """Yield the fields of a portion, token_ids as `dtype`, and of sequences with the loss mask
    that the format keeps. In pieces where they have to be copied, else at once."""
    token_ids = fields["token_ids"]
    if layout.is_packed:
        at_once = max(1, TOKENS_AT_ONCE // token_ids.shape[1])
        for first in range(0, len(token_ids), at_once):
            some = {name: values[first : first + at_once] for name, values in fields.items()}
            some["token_ids"] = of_dtype(some["token_ids"], dtype)
            if "loss_mask" in layout.keeps and "loss_mask" not in some:
                some["loss_mask"] = some["segment_ids"] != 0
            yield some
    elif token_ids.dtype.itemsize == dtype.itemsize:
        yield {**fields, "token_ids": of_dtype(token_ids, dtype)}
    elif "offsets" not in fields:
        for first in range(0, len(token_ids), TOKENS_AT_ONCE):
            yield {"token_ids": token_ids[first : first + TOKENS_AT_ONCE].astype(dtype)}
    else:  # whole documents
        for here, offsets in batches_of_documents(np.diff(fields["offsets"]), TOKENS_AT_ONCE):
            mask = {"loss_mask": fields["loss_mask"][here]} if "loss_mask" in fields else {}
            yield {"token_ids": token_ids[here].astype(dtype), "offsets": offsets, **mask}


def of_dtype(token_ids: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return token ids as `dtype`; nothing is copied where it has as many bytes."""
    is_viewed = token_ids.dtype.itemsize == dtype.itemsize
    return token_ids.view(dtype) if is_viewed else token_ids.astype(dtype)


def documents_of(stored: StoredOutput, part: str, limit: int | None) -> pa.Table:
    """Return the documents of a part of a stream, one row each.

    Where the EOS of a document is moved before it, the index has a row of its own for it, in front
    of that of the rest.
    """
    segments = read_segments(stored, part, None if limit is None else 2 * limit)
    is_first = np.ones(len(segments), dtype=bool)
    is_first[1:] = to_numpy(segments["token_in_piece"])[:-1] == 0
    first = np.flatnonzero(is_first)
    num_tokens = to_numpy(segments["num_tokens"])
    sums = np.add.reduceat(num_tokens, first) if len(first) else num_tokens
    found = segments.take(to_arrow(first)).drop_columns("token_in_piece")
    number = found.schema.get_field_index("num_tokens")
    return found.set_column(number, found.schema.field(number), to_arrow(sums))[:limit]


def lists_of(
    read: Iterator[Arrays], names: Sequence[str], num: int, sizes: Any, *, dtype: np.dtype[Any]
) -> dict[str, pa.Array]:
    """Return each field of the first `num` sequences, all of one size, or of the first documents of
    a stream, which have these numbers of tokens."""
    is_fixed = np.ndim(sizes) == 0
    offsets = np.array([0, num * sizes]) if is_fixed else offsets_of(sizes)
    num_positions = left = int(offsets[-1])
    dtypes = {"token_ids": dtype, "loss_mask": np.dtype(bool)}
    found: dict[str, list[Any]] = {
        name: [np.zeros(0, dtypes.get(name, np.dtype(np.int32)))] for name in names
    }
    while names and left > 0 and (fields := next(read, None)) is not None:
        left -= fields["token_ids"].size
        for name in names:
            found[name].append(fields[name].reshape(-1))
    flat = {name: to_arrow(np.concatenate(of)[:num_positions]) for name, of in found.items()}
    if is_fixed:
        return {name: pa.FixedSizeListArray.from_arrays(of, sizes) for name, of in flat.items()}
    starts = to_arrow(offsets)
    return {name: pa.LargeListArray.from_arrays(starts, of) for name, of in flat.items()}

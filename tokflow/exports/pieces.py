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
    token_ids = _viewed(fields["token_ids"], dtype)
    if layout.is_packed:
        yield from _pieces_of_sequences({**fields, "token_ids": token_ids}, layout, dtype)
    elif token_ids.dtype == dtype:
        yield {**fields, "token_ids": token_ids}
    else:
        for here, own in _documents(fields, len(token_ids)):
            yield {"token_ids": token_ids[here].astype(dtype), **own}


def of_dtype(token_ids: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return token ids as `dtype`; nothing is copied where it has as many bytes."""
    return _viewed(token_ids, dtype).astype(dtype, copy=False)


def _viewed(token_ids: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return token_ids.view(dtype) if token_ids.dtype.itemsize == dtype.itemsize else token_ids


def _pieces_of_sequences(fields: Arrays, layout: Layout, dtype: np.dtype[Any]) -> Iterator[Arrays]:
    num_sequences, length = fields["token_ids"].shape
    at_once = max(1, TOKENS_AT_ONCE // length)
    for first in range(0, num_sequences, at_once):
        some = {name: values[first : first + at_once] for name, values in fields.items()}
        some["token_ids"] = some["token_ids"].astype(dtype, copy=False)
        if "loss_mask" in layout.keeps and "loss_mask" not in some:
            some["loss_mask"] = some["segment_ids"] != 0
        yield some


def _documents(fields: Arrays, num_tokens: int) -> Iterator[tuple[slice, Arrays]]:
    """Yield where some whole documents are, and what there is of them beside the tokens; without
    offsets just some of the tokens."""
    if "offsets" not in fields:
        for first in range(0, num_tokens, TOKENS_AT_ONCE):
            yield slice(first, first + TOKENS_AT_ONCE), {}
        return
    lengths: npt.NDArray[np.int64] = np.diff(fields["offsets"])
    for here, offsets in batches_of_documents(lengths, TOKENS_AT_ONCE):
        mask = {"loss_mask": fields["loss_mask"][here]} if "loss_mask" in fields else {}
        yield here, {"offsets": offsets, **mask}


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


def rows_of(
    read: Iterator[Arrays], names: Sequence[str], num: int, *, length: int, dtype: np.dtype[Any]
) -> dict[str, pa.FixedSizeListArray]:
    """Return the first `num` sequences, each of `length` positions, of each field."""
    flat = _first(read, names, num, num * length, dtype)
    return {name: pa.FixedSizeListArray.from_arrays(flat[name], length) for name in names}


def lists_of(
    read: Iterator[Arrays], names: Sequence[str], num_tokens: Any, *, dtype: np.dtype[Any]
) -> dict[str, pa.LargeListArray]:
    """Return the first documents of a stream, which have these numbers of tokens, of each field."""
    offsets = offsets_of(num_tokens)
    flat = _first(read, names, int(offsets[-1]), int(offsets[-1]), dtype)
    return {name: pa.LargeListArray.from_arrays(to_arrow(offsets), flat[name]) for name in names}


def _first(
    read: Iterator[Arrays], names: Sequence[str], num: int, num_positions: int, dtype: np.dtype[Any]
) -> dict[str, pa.Array]:
    """Return the positions of the first `num` sequences or tokens, end to end, of each field."""
    dtypes = {"token_ids": dtype, "loss_mask": np.dtype(bool)}
    found: dict[str, list[Any]] = {
        name: [np.zeros(0, dtypes.get(name, np.dtype(np.int32)))] for name in names
    }
    while names and num > 0 and (fields := next(read, None)) is not None:
        num -= len(fields["token_ids"])
        for name in names:
            found[name].append(fields[name].reshape(-1))
    return {name: to_arrow(np.concatenate(some)[:num_positions]) for name, some in found.items()}

"""The fields of a portion as `Export.read` yields them: in types that every format has alike."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.exports.format import Arrays, Layout
from tokflow.exports.token_files import batches_of_documents

TOKENS_AT_ONCE = 2**22
"""At most, copied to another type; documents stay whole."""


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

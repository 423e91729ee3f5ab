"""The fields that an export must have, made again from what it was made from."""

from collections.abc import Callable, Iterator
from itertools import tee
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.audit.verify.problems import TOKENS_AT_ONCE
from tokflow.exports import Layout, Part
from tokflow.exports.sequence_files import sequences_within


class Rechunked:
    """The values, or rows, of arrays or tables end to end, taken as many at a time as wished."""

    def __init__(
        self, chunks: Iterator[Any], join: Callable[[list[Any]], Any] = np.concatenate
    ) -> None:
        self._chunks = chunks
        self._join = join
        self._rest: Any = ()

    def next(self, size: int) -> Any:
        """Return the next `size` values, or fewer at the end; () where there is none."""
        taken = []
        while size:
            chunk = self._rest if len(self._rest) else next(self._chunks, None)
            if chunk is None:
                break
            taken.append(chunk[:size])
            self._rest = chunk[size:]
            size -= len(taken[-1])
        return self._join(taken) if taken else ()


def expected_fields(layout: Layout, part: Part) -> dict[str, Rechunked]:
    """Return the values that each field of an export must have, padding included."""
    if layout.made_of == "sequences":
        num = sequences_within(TOKENS_AT_ONCE, part.sequence_length)
        copies = tee(part.sequences(num), len(layout.keeps))
        return {
            name: Rechunked(values.reshape(-1) for values in map(attrgetter(name), copy))
            for name, copy in zip(layout.keeps, copies, strict=True)
        }
    fields = {"token_ids": Rechunked(part.stream(eos_first=layout.eos_first))}
    if "loss_mask" in layout.keeps and part.has_loss_mask:
        fields["loss_mask"] = Rechunked(part.stream_loss_mask())
    if "offsets" in layout.keeps and part.num_tokens:
        fields["offsets"] = Rechunked(_lengths(layout, part))
    return fields


def _lengths(layout: Layout, part: Part) -> Iterator[npt.NDArray[np.int64]]:
    for of_file in part.documents():
        lengths = of_file.num_tokens
        yield lengths[lengths > 0] if layout.leaves_out_empty else lengths

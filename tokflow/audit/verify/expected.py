"""What the fields of an export must be, made again from what it was made from."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.audit.verify.problems import TOKENS_AT_ONCE
from tokflow.exports import Arrays, Layout, Part
from tokflow.exports.sequence_files import sequences_within

NAMES = {
    "token_ids": "token",
    "segment_ids": "segment id of token",
    "position_ids": "position id of token",
    "loss_mask": "loss mask of token",
    "offsets": "length of document",
}
"""What a message calls one value of a field."""


class Expected:
    """The values of one field, taken in pieces of any size from runs of several fields."""

    def __init__(self, runs: "Runs", name: str) -> None:
        self._runs = runs
        self._name = name
        self._rest: npt.NDArray[Any] | None = None

    def next(self, size: int) -> npt.NDArray[Any]:
        """Return the next `size` values, or fewer at the end."""
        taken: list[npt.NDArray[Any]] = []
        while size:
            run = self._rest if self._rest is not None else self._runs.next(self._name)
            if run is None:
                break
            taken.append(run[:size])
            self._rest = run[size:] if len(run) > size else None
            size -= len(taken[-1])
        return np.concatenate(taken) if taken else np.zeros(0, dtype=np.uint32)


def expected_fields(layout: Layout, part: Part) -> dict[str, Expected]:
    """Return the values that each field of an export must have, padding included."""
    if layout.made_of == "sequences":
        runs = Runs(_rows(layout, part))
        return {name: Expected(runs, name) for name in layout.keeps}
    fields: dict[str, Iterator[npt.NDArray[Any]]] = {
        "token_ids": part.stream(eos_first=layout.eos_first)
    }
    if "loss_mask" in layout.keeps and part.has_loss_mask:
        fields["loss_mask"] = part.stream_loss_mask()
    if "offsets" in layout.keeps and part.num_tokens:
        fields["offsets"] = _lengths(layout, part)
    return {name: Expected(Runs(_named(name, values)), name) for name, values in fields.items()}


def _lengths(layout: Layout, part: Part) -> Iterator[npt.NDArray[np.int64]]:
    for of_file in part.documents():
        lengths = of_file.num_tokens
        yield lengths[lengths > 0] if layout.leaves_out_empty else lengths


def _named(name: str, values: Iterator[npt.NDArray[Any]]) -> Iterator[Arrays]:
    return ({name: run} for run in values)


class Runs:
    """Runs of several fields, each kept until it has been asked for."""

    def __init__(self, runs: Iterator[Arrays]) -> None:
        self._runs = runs
        self._waiting: dict[str, deque[npt.NDArray[Any]]] = {}

    def next(self, name: str) -> npt.NDArray[Any] | None:
        """Return the next run of a field; None at the end."""
        while not self._waiting.get(name):
            fields = next(self._runs, None)
            if fields is None:
                return None
            for each, run in fields.items():
                self._waiting.setdefault(each, deque()).append(run)
        return self._waiting[name].popleft()


def _rows(layout: Layout, part: Part) -> Iterator[Arrays]:
    num_rows = sequences_within(TOKENS_AT_ONCE, part.sequence_length)
    for rows in part.sequences(num_rows):
        yield {name: getattr(rows, name).reshape(-1) for name in layout.keeps}

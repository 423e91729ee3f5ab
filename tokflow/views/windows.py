"""Windows of a part of an export: its sequences, or some tokens of a stream at a time."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.audit.ancestry import Ancestry
from tokflow.audit.inspection import segments_of
from tokflow.exports import Export
from tokflow.exports.columns import ALL_POSITIONS, positions_in_files
from tokflow.exports.damage import damaged_file
from tokflow.exports.index import read_index
from tokflow.exports.options import equal_sizes
from tokflow.exports.part_sequences import cut
from tokflow.exports.reading import of_dtype, pieces
from tokflow.store.store import StoredOutput

STREAM_WINDOW = 1_024
"""Tokens of a window where there are no sequences."""

LONGEST_WINDOW = 4_096
"""Positions of a window at most: a longer sequence is several, for a browser to draw each at
once."""

POSITIONS_AT_ONCE = 2**18


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Neighbouring positions of a part, all of one sequence or of a stream."""

    position: int
    """Of its first position in the part."""
    token_ids: npt.NDArray[np.unsignedinteger]
    """(num_positions,), tokens and padding."""
    loss_mask: npt.NDArray[np.bool_]
    """(num_positions,), True at loss tokens; of padding anything."""
    entries: list[dict[str, Any]]
    """Rows of the index that touch it; what none touches is padding."""

    def segments(self) -> Iterator[tuple[int, int, dict[str, Any] | None]]:
        """Yield where each segment begins and ends in the window, and its row of the index; None of
        padding."""
        positions = range(self.position, self.position + len(self.token_ids))
        for begin, end, entry in segments_of(self.entries, positions):
            yield begin - self.position, end - self.position, entry


@dataclass(frozen=True, kw_only=True, slots=True)
class PartWindows:
    """The windows of one part of an export, read in order."""

    output: StoredOutput
    part: str

    @property
    def export(self) -> Export:
        """The export, with the sequence_length of the part."""
        return Export(self.output).of_part(self.part)

    @property
    def length(self) -> int:
        """Positions of a sequence; of a stream those of a window."""
        return self.export.sequence_length or STREAM_WINDOW

    @property
    def num_sequences(self) -> int:
        """Sequences of the part; of a stream windows."""
        return -(-self.export.num_positions(self.part) // self.length)

    @property
    def written(self) -> slice | None:
        """The positions of each sequence that are in the files; None: those of its tokens."""
        if self.export.sequence_length is None:
            return ALL_POSITIONS
        return positions_in_files(self.export, self.part)

    def windows(self, first: int, num: int) -> Iterator[Window]:
        """Yield those of `num` sequences from the sequence `first` on; a sequence that is longer
        than LONGEST_WINDOW is several.

        Of the files no more is read than portions with one of them.
        """
        position = first * self.length
        at_once = max(1, POSITIONS_AT_ONCE // self.length) * self.length
        sizes = equal_sizes(max(0, min(num, self.num_sequences - first)) * self.length, at_once)
        for taken in cut(self._tokens(range(position, position + sum(sizes))), sizes):
            tokens = np.concatenate([*taken])
            entries = read_index(self.output, self.part, position, position + len(tokens))
            starts = [entry["position"] for entry in entries]
            ends = [entry["position"] + entry["num_tokens"] for entry in entries]
            for window in self._edges(len(tokens)):
                here = range(position + window.start, position + window.stop)
                yield Window(
                    position=here.start,
                    token_ids=tokens["token_ids"][window],
                    loss_mask=tokens["loss_mask"][window],
                    entries=entries[
                        bisect_right(ends, here.start) : bisect_left(starts, here.stop)
                    ],
                )
            position += len(tokens)

    def _edges(self, num: int) -> Iterator["slice[int, int, None]"]:
        """Yield where windows of so many positions, whole sequences, begin and end."""
        for sequence in range(0, num, self.length):
            stop = min(sequence + self.length, num)
            for start in range(sequence, stop, LONGEST_WINDOW):
                yield slice(start, min(start + LONGEST_WINDOW, stop))

    def _tokens(self, positions: range) -> Iterator[npt.NDArray[Any]]:
        """Yield what stands at some positions, whole sequences of them."""
        export, dtype = self.export, self.export.dtype
        if not export.is_read:
            yield from self._made_of(positions)
            return
        is_packed = export.layout.is_packed
        width = self.length if is_packed else 1
        first, stop = positions.start // width, positions.stop // width
        for portion in export.portions(self.part):
            here = slice(max(first, 0), min(stop, portion.num))
            first, stop = first - portion.num, stop - portion.num
            if here.start >= here.stop:
                continue
            fields = {
                name: values[here]
                for name, values in portion.read_lazily().items()
                if name != "offsets"
            }
            some = [{**fields, "token_ids": of_dtype(fields["token_ids"], dtype)}]
            for piece in pieces(fields, export.layout, dtype) if is_packed else some:
                self._check_ids(piece["token_ids"], portion.path)
                yield _tokens(piece["token_ids"], piece.get("loss_mask"), dtype)

    def _check_ids(self, token_ids: npt.NDArray[Any], path: Path) -> None:
        """Raise CorruptOutputError where an id is neither of the vocabulary nor padding."""
        pad_id = self.export.manifest.details.get("pad_id") or 0
        most = max(self.export.vocab_size - 1, pad_id)
        if token_ids.size and (largest := int(token_ids.max())) > most:
            expected = f"token ids up to {most:,} in {self.part}"
            raise damaged_file(path, expected=expected, found=f"{largest:,}")

    def _made_of(self, positions: range) -> Iterator[npt.NDArray[Any]]:
        """Yield the sequences that the files were made from, which are never read."""
        part = next(part for part in Ancestry().parts(self.output) if part.name == self.part)
        within = range(positions.start // self.length, positions.stop // self.length)
        for some in part.packed.sequences(within=within):
            self._check_ids(some.token_ids, self.output.folder)
            yield _tokens(some.token_ids, some.loss_mask, some.token_ids.dtype)


def _tokens(
    token_ids: npt.NDArray[Any], loss_mask: npt.NDArray[Any] | None, dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Return neighbouring positions, (num_positions,), with the fields token_ids and loss_mask;
    without a mask every token counts."""
    tokens = np.ones(token_ids.size, [("token_ids", dtype), ("loss_mask", np.bool_)])
    tokens["token_ids"] = token_ids.reshape(-1)
    if loss_mask is not None:
        tokens["loss_mask"] = loss_mask.reshape(-1)
    return tokens

"""The contract of what sequences of a part are made of: those of a file, or of a group."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tokflow.sequences.segments import SEGMENTS_COLUMNS
from tokflow.store.tables import Columns
from tokflow.tokens.origins import Origins
from tokflow.tokens.token_source import Tokens


class PackedSource(Protocol):
    """The tokens that segments are taken from."""

    def token_source(self) -> Tokens:
        """Return what `token_start` of segments points into."""

    def loss_mask_source(self) -> Tokens | None:
        """Return the loss mask of these tokens; None where every token counts."""


class PackedFile(Protocol):
    """The sequences of one file, or of a group of shuffled documents, and its tail."""

    @property
    def source(self) -> PackedSource:
        """Its tokens; several in a row may have one source."""

    @property
    def counts(self) -> Mapping[str, int]:
        """As the manifest of a file's sequences has them."""

    @property
    def origins(self) -> Origins:
        """The raw files that `rows` are of."""

    def rows(self) -> npt.NDArray[np.int64]:
        """Return the row of each document, by the ordinal that segments have."""

    def num_sequences(self, part: str) -> int:
        """Return the number of finished sequences of a part; its tail is not among them."""

    def num_spans(self, part: str) -> int:
        """Return how many documents of a part there are; a span of a cut one counts as such."""

    def segments(self, part: str, columns: Sequence[str] = SEGMENTS_COLUMNS) -> Columns:
        """Return the segments of the finished sequences of a part, in the order of these."""

    def tail(self, part: str) -> Columns:
        """Return the segments of a part that fill no sequence: leftover tokens."""

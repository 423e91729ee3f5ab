"""The config of packing."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tokflow.errors import ConfigError

Strategy: TypeAlias = Literal["concat", "greedy", "first_fit", "best_fit", "pool", "one_document"]
Overlong: TypeAlias = Literal["split", "truncate", "drop"]
Tail: TypeAlias = Literal["pad", "drop"]

MAX_SEQUENCE_LENGTH = 2**24
"""Sixteen times the longest context that is trained today; a row must fit into memory."""

MAX_PAD_ID = 2**31 - 1
"""Formats of rows store ids as int32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingConfig:
    """How tokens become rows of one length. No token is dropped unless a field says so."""

    strategy: Strategy = "concat"
    """concat: documents end to end, cut into rows. greedy (next-fit), first_fit, best_fit
    (best-fit decreasing) and pool (best-fit decreasing within `pool_size` documents): documents
    side by side in a row, none cut that fits into one. one_document: each begins a row."""
    sequence_length: int = 1024
    """Tokens stored per row; a loader makes inputs and labels of it by shifting."""
    label_token: bool = False
    """Store one token more per row, so that each of `sequence_length` inputs has its label. A row
    that continues another begins with that row's last token."""
    overlap: int = 0
    """Tokens that a row repeats from the row it continues: of the same document or, with concat,
    of the row before it. Counted as num_repeated_tokens."""
    overlong: Overlong = "split"
    """What happens to a document longer than a row: split goes on in further rows, truncate keeps
    one row of it, drop leaves it out."""
    tail: Tail = "pad"
    """What happens to the last row of a part if it is not full. It is made of the rows that each
    file leaves open, so there is one such row in the whole dataset; of one_document none."""
    min_sample_length: int = 1
    """A row with fewer tokens, padding not counted, is left out and counted as dropped; one with
    exactly so many is kept (PickledTrainerDataset's script keeps rows with more)."""
    pool_size: int = 10_000
    """pool: documents that are packed together. Rows hold documents that are at most about so
    many apart; more of them fill rows better."""
    pad_id: int | None = None
    """Token id that fills a row; default: the EOS id, or 0 where there is none."""

    def __post_init__(self) -> None:
        longest = f"1 to {MAX_SEQUENCE_LENGTH:,}"
        if not 1 <= self.sequence_length <= MAX_SEQUENCE_LENGTH:
            raise self._error("sequence_length", longest, "a usual length is 1024 or 2048")
        if not 0 <= self.overlap < self.sequence_length:
            below = f"0 to {self.sequence_length - 1:,}, less than sequence_length"
            raise self._error("overlap", below, "lower it, or raise sequence_length")
        if self.overlap and self.overlong != "split" and self.strategy != "concat":
            remedy = (
                f"{self.strategy} continues no row with overlong: {self.overlong}; leave it out"
            )
            raise self._error("overlap", "0", remedy)
        if not 1 <= self.min_sample_length <= self.row_length:
            most = f"1 to {self.row_length:,}, the tokens of a row"
            raise self._error("min_sample_length", most, "a longer row there is not")
        if self.pool_size < 1:
            raise self._error("pool_size", "1 or more", "raise it; a usual size is 10000")
        if self.pad_id is not None and not 0 <= self.pad_id <= MAX_PAD_ID:
            ids = f"0 to {MAX_PAD_ID:,}, for rows are stored as int32"
            raise self._error("pad_id", ids, "name an id that the model knows or ignores")

    @property
    def row_length(self) -> int:
        """Tokens stored per row, the label of the last input among them."""
        return self.sequence_length + self.label_token

    @property
    def row_overlap(self) -> int:
        """Tokens at the beginning of a row that the row it continues has at its end."""
        return self.overlap + self.label_token

    def fields_of_file(self) -> dict[str, Any]:
        """Return the fields that decide the rows of one file; its open row is left to exports."""
        ignored = {"tail", "pad_id"}
        if self.strategy == "concat":  # whose finished rows are all full
            ignored.add("min_sample_length")
        return {
            name: value for name, value in self.fields_of_export().items() if name not in ignored
        }

    def fields_of_export(self) -> dict[str, Any]:
        """Return the fields that decide the rows of an export."""
        fields = dataclasses.asdict(self)
        if self.strategy != "pool":
            del fields["pool_size"]
        return fields

    def _error(self, name: str, expected: str, remedy: str) -> ConfigError:
        return ConfigError(
            where=f"packing.{name}",
            expected=expected,
            found=repr(getattr(self, name)),
            remedy=remedy,
        )

"""The config of packing."""

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from tokflow.errors import ConfigError
from tokflow.store.config import Config

Strategy: TypeAlias = Literal["concat", "greedy", "first_fit", "best_fit", "pool", "one_document"]
Overlong: TypeAlias = Literal["split", "truncate", "drop"]
Tail: TypeAlias = Literal["pad", "drop"]

MAX_SEQUENCE_LENGTH = 2**24
"""Sixteen times the longest context that is trained today; a sequence must fit into memory."""

MAX_PAD_ID = 2**31 - 1
"""Formats of sequences store ids as int32."""


class PackingConfig(Config):
    """Packing of tokens into sequences of one length; none is dropped unless a field says so."""

    section: ClassVar[str] = "packing"

    strategy: Strategy = "concat"
    """concat: documents end to end, cut into sequences. greedy (next-fit), first_fit, best_fit
    (best-fit decreasing) and pool (best-fit decreasing within `pool_size` documents): documents
    side by side, none cut that fits into one sequence. one_document: each begins a sequence."""
    sequence_length: Annotated[
        int, Field(ge=1, le=MAX_SEQUENCE_LENGTH), "a usual length is 1024 or 2048"
    ] = 1024
    """Tokens stored per sequence; a loader makes inputs and labels of it by shifting."""
    label_token: bool = False
    """Store one token more per sequence, so that each of `sequence_length` inputs has its label. A
    sequence that continues another begins with the last token of that one."""
    overlap: Annotated[int, Field(ge=0)] = 0
    """Tokens that a sequence repeats from the one it continues: of the same document or, with
    concat, of the sequence before it. Counted as num_repeated_tokens."""
    overlong: Overlong = "split"
    """Treatment of a document longer than a sequence: split goes on in further sequences, truncate
    keeps one sequence of it, drop leaves it out."""
    tail: Tail = "pad"
    """Treatment of a part's last sequence if it is not full. It is made of the leftover tokens of
    all files, so there is one in the whole dataset; with one_document there is none."""
    min_sample_length: Annotated[int, Field(ge=1)] = 1
    """A sequence with fewer tokens, padding not counted, is left out and counted as dropped; one
    with exactly so many is kept (PickledTrainerDataset's script keeps those with more)."""
    pool_size: Annotated[int, Field(ge=1), "a usual size is 10000"] = 10_000
    """pool: documents that are packed together. Sequences hold documents that are at most about
    so many apart; more of them fill sequences better."""
    pad_id: Annotated[
        int | None,
        Field(ge=0, le=MAX_PAD_ID),
        "an id that the model knows or ignores, stored as int32",
    ] = None
    """Token id that fills a sequence; default: the EOS id, or 0 where there is none."""

    def check(self) -> None:
        """Refuse fields that do not go together."""
        if self.overlap >= self.sequence_length:
            below = f"0 to {self.sequence_length - 1:,}, less than sequence_length"
            raise self._error("overlap", below, "lower it, or raise sequence_length")
        if self.overlap and self.overlong != "split" and self.strategy != "concat":
            remedy = f"{self.strategy} continues no sequence with overlong: {self.overlong}"
            raise self._error("overlap", "0", f"{remedy}; leave it out")
        if self.min_sample_length > self.stored_length:
            most = f"1 to {self.stored_length:,}, the tokens of a sequence"
            raise self._error("min_sample_length", most, "no sequence is longer")

    @property
    def stored_length(self) -> int:
        """Tokens stored per sequence, the label of the last input among them."""
        return self.sequence_length + self.label_token

    @property
    def stored_overlap(self) -> int:
        """Tokens at the beginning of a sequence that the one it continues has at its end."""
        return self.overlap + self.label_token

    def fields_of_file(self) -> dict[str, Any]:
        """Return the fields that decide one file's sequences; leftover tokens are for exports."""
        # The finished sequences of concat are all full.
        of_full = ("min_sample_length",) if self.strategy == "concat" else ()
        return self.fields_of_export("tail", "pad_id", *of_full)

    def fields_of_export(self, *ignored: str) -> dict[str, Any]:
        """Return the fields that decide the sequences of an export, but for `ignored`."""
        of_pool = () if self.strategy == "pool" else ("pool_size",)
        return self.model_dump(exclude={*ignored, *of_pool})

    def _error(self, name: str, expected: str, remedy: str) -> ConfigError:
        found = repr(getattr(self, name))
        return ConfigError(where=name, expected=expected, found=found, remedy=remedy)

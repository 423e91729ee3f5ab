"""The sequences that are made of the tails of all files, as one more file would be."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import repeat

import numpy as np
import numpy.typing as npt

from tokflow.exports.shuffled_documents import GatheredTokens, PackedFile
from tokflow.sequences.config import PackingConfig
from tokflow.sequences.packing import PackingResult, Segments, pack_tails
from tokflow.sequences.segments import SEGMENTS_COLUMNS
from tokflow.sequences.turns import SpanMask
from tokflow.split.spans import Split
from tokflow.store.tables import Columns


@dataclass(frozen=True, kw_only=True, slots=True)
class Tails:
    """Segments of the sequences made of the tails of all files, in order."""

    columns: Columns
    """Columns of segments, and the ordinal of the file of each."""
    whole: Segments
    """The tails before they are packed."""
    packed: PackingResult
    mask: SpanMask | None
    """The loss mask of the documents of `whole`; None where none are chats."""

    @property
    def num_repeated_more(self) -> int:
        """Repeated tokens of these sequences, less those that the files count in their tails."""
        packed, whole = self.packed.segments, self.whole
        return int(packed.num_repeated.sum() - whole.num_repeated.sum())

    @property
    def counts(self) -> dict[str, int]:
        """Documents and, of chats, turns and sequences that were cut or left out."""
        counts = asdict(self.packed.counts)
        if self.mask is None:
            del counts["num_dropped_sequences"]
            return counts
        return counts | self.mask.turn_counts(self.whole, self.packed.segments)


def pack_tails_of(
    files: Sequence[PackedFile],
    part: str,
    packing: PackingConfig,
    splits: Sequence[Split],
    positions: npt.NDArray[np.int64],
) -> Tails:
    """Return the sequences made of the tails of files; `positions`: the position at which the
    tokens of each file begin in those of all splits."""
    of_files = [file.tail(part) for file in files]
    empty = np.zeros(0, dtype=np.int64)
    tails = {
        name: np.concatenate([empty, *(tail[name] for tail in of_files)])
        for name in SEGMENTS_COLUMNS
    }
    whole = Segments(
        span=np.arange(len(tails["sequence"])),
        token_in_span=tails["token_in_piece"],
        **{name: tails[name] for name in ("sequence", "num_tokens", "num_repeated")},
    )
    file = np.repeat(np.arange(len(of_files)), [len(tail["num_tokens"]) for tail in of_files])
    span_start = tails["token_start"] - tails["token_in_piece"]
    masks = GatheredTokens.masks(splits)
    mask = None if masks is None else SpanMask(masks, span_start + positions[file])
    is_begun = None  # a document's first sequence is there, unless it was dropped
    if files and mask is not None and packing.drop_unsupervised:
        is_begun = np.concatenate([*map(_is_begun, files, of_files, repeat(part))])
    packed = pack_tails(whole, packing, mask.num_supervised if mask else None, is_begun)
    found = packed.segments
    return Tails(
        columns={
            "file": file[found.span],
            "sequence": found.sequence,
            "num_tokens": found.num_tokens,
            "token_start": span_start[found.span] + found.token_in_span,
            "document": tails["document"][found.span],
            "char_start": tails["char_start"][found.span],
            "token_in_piece": found.token_in_span,
        },
        whole=whole,
        packed=packed,
        mask=mask,
    )


def _is_begun(file: PackedFile, tail: Columns, part: str) -> npt.NDArray[np.bool_]:
    """Return True for segments of a file's tail whose document a finished sequence has."""
    finished = file.segments(part, ("document",))["document"]
    return np.isin(tail["document"], finished)

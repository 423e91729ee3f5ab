"""Are the sequences of one file what they say they are."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tokflow.sequences import SEGMENTS_NAME, SEGMENTS_SCHEMA, FileSequences
from tokflow.tables import read_part
from tokflow.verify.problems import unequal


def verify_sequences(sequences: FileSequences) -> list[str]:
    """Return what is wrong with the sequences of one file.

    Every token of every part of the split stands in exactly one row or in the tail; no row is
    longer than sequence_length.
    """
    problems: list[str] = []
    for part in sequences.split.parts:
        path = sequences.folder / SEGMENTS_NAME
        columns = read_part(path, part, SEGMENTS_SCHEMA.names[1:])
        problems += _row_counts(sequences, part, columns)
        problems += _segment_problems(sequences, part, columns)
    return problems


def _row_counts(
    sequences: FileSequences, part: str, columns: dict[str, npt.NDArray[np.int64]]
) -> Iterator[str]:
    length = int(sequences.manifest.details["sequence_length"])
    counts, where = sequences.manifest.counts, f"{sequences.folder}: {part}"
    num_rows = counts[f"{part}.num_sequences"]
    is_tail = columns["sequence"] >= num_rows
    fill = np.bincount(
        columns["sequence"][~is_tail],
        weights=columns["num_tokens"][~is_tail],
        minlength=num_rows,
    ).astype(np.int64)
    in_rows, in_tail = int(fill.sum()), int(columns["num_tokens"][is_tail].sum())
    yield from unequal(
        where,
        num_sequences=(num_rows, len(fill)),
        num_tokens=(counts[f"{part}.num_tokens"], in_rows),
        num_padding=(counts[f"{part}.num_padding"], num_rows * length - in_rows),
        num_tail_tokens=(counts[f"{part}.num_tail_tokens"], in_tail),
    )
    in_split = sequences.split.manifest.counts[f"{part}.num_tokens"]
    yield from unequal(f"{where}: rows and tail", num_tokens=(in_split, in_rows + in_tail))
    if len(fill) and (fill.max() > length or fill.min() < 1):
        row = int(np.flatnonzero((fill > length) | (fill < 1))[0])
        yield f"{where}: sequence {row:,}: expected 1 to {length:,} tokens, found {fill[row]:,}"


def _segment_problems(
    sequences: FileSequences, part: str, columns: dict[str, npt.NDArray[np.int64]]
) -> Iterator[str]:
    """Check that the segments of each piece, end to end, are the piece."""
    where = f"{sequences.folder}: {part}"
    pieces = sequences.split.pieces(part)
    is_some = pieces.num_tokens > 0
    expected = np.stack(
        [values[is_some] for values in (pieces.token_start, pieces.num_tokens, pieces.document)]
    )
    order = np.lexsort((columns["token_in_piece"], columns["char_start"], columns["document"]))
    lengths = columns["num_tokens"][order]
    in_piece = columns["token_in_piece"][order]
    first = np.flatnonzero(in_piece == 0)
    if len(lengths) == 0 or len(first) != expected.shape[1] or first[0] != 0:
        if expected.shape[1] or len(lengths):
            yield f"{where}: expected {expected.shape[1]:,} pieces of text, found {len(first):,}"
        return
    sums = np.add.reduceat(lengths, first)
    starts = np.cumsum(lengths) - lengths
    is_run = in_piece == starts - np.repeat(starts[first], np.diff([*first, len(lengths)]))
    token_start = columns["token_start"][order] - in_piece
    found = np.stack([token_start[first], sums, columns["document"][order][first]])
    is_same_piece = token_start == np.repeat(token_start[first], np.diff([*first, len(lengths)]))
    by_piece = np.lexsort((expected[0], expected[2]))
    if not ((found == expected[:, by_piece]).all() and is_run.all() and is_same_piece.all()):
        yield f"{where}: expected each token of the split in exactly one sequence, found otherwise"

"""Are the sequences of one file what they say they are."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tokflow.audit.verify.problems import unequal
from tokflow.sequences.packing import PackingConfig
from tokflow.sequences.segments import SEGMENTS_COLUMNS, SEGMENTS_NAME, FileSequences
from tokflow.store.tables import Columns, read_part


def verify_sequences(sequences: FileSequences) -> list[str]:
    """Return what is wrong with the sequences of one file.

    Every token of every part of the split stands in exactly one row or in the tail, but for those
    that are declared as repeated or dropped; no row is longer than sequence_length.
    """
    problems: list[str] = []
    for part in sequences.split.parts:
        columns = read_part(sequences.folder / SEGMENTS_NAME, part, SEGMENTS_COLUMNS)
        problems += _row_counts(sequences, part, columns)
        problems += _piece_problems(sequences, part, columns)
    return problems


def _row_counts(sequences: FileSequences, part: str, columns: Columns) -> Iterator[str]:
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
    repeated = int(columns["num_repeated"].sum())
    yield from unequal(
        where,
        num_sequences=(num_rows, len(fill)),
        num_tokens=(counts[f"{part}.num_tokens"], in_rows),
        num_padding=(counts[f"{part}.num_padding"], num_rows * length - in_rows),
        num_tail_tokens=(counts[f"{part}.num_tail_tokens"], in_tail),
        num_repeated_tokens=(counts[f"{part}.num_repeated_tokens"], repeated),
    )
    in_split = sequences.split.manifest.counts[f"{part}.num_tokens"]
    once = in_rows + in_tail - repeated + counts[f"{part}.num_dropped_tokens"]
    yield from unequal(f"{where}: rows, tail and dropped", num_tokens=(in_split, once))
    if len(fill) and (fill.max() > length or fill.min() < 1):
        row = int(np.flatnonzero((fill > length) | (fill < 1))[0])
        yield f"{where}: sequence {row:,}: expected 1 to {length:,} tokens, found {fill[row]:,}"


def _piece_problems(sequences: FileSequences, part: str, columns: Columns) -> Iterator[str]:
    """Check that the segments of each piece, end to end without what they repeat, are the piece
    or as much of it as the config says."""
    where = f"{sequences.folder}: {part}"
    pieces = sequences.split.pieces(part)
    order = np.argsort(pieces.token_start, kind="stable")
    order = order[pieces.num_tokens[order] > 0]
    starts, size = pieces.token_start[order], pieces.num_tokens[order]
    piece_start = columns["token_start"] - columns["token_in_piece"]
    piece = np.minimum(np.searchsorted(starts, piece_start), max(len(starts) - 1, 0))
    if len(piece) and (len(starts) == 0 or (starts[piece] != piece_start).any()):
        yield f"{where}: expected segments of its pieces of text, found one of none of them"
        return
    by_piece = np.lexsort((columns["sequence"], columns["token_in_piece"], piece))
    piece, some = piece[by_piece], {name: values[by_piece] for name, values in columns.items()}
    begin = some["token_in_piece"] + some["num_repeated"]
    end = some["token_in_piece"] + some["num_tokens"]
    before = np.zeros_like(end)  # where the segment before it ends in the same piece
    before[1:] = np.where(piece[1:] == piece[:-1], end[:-1], 0)
    is_right = (begin == before) & (end >= begin) & (end <= size[piece])
    is_right &= some["document"] == pieces.document[order][piece]
    is_right &= some["char_start"] == pieces.char_start[order][piece]
    found = np.zeros_like(size)
    np.maximum.at(found, piece, end)
    config = PackingConfig(**sequences.manifest.config)
    if not (is_right.all() and _may_end(found, size, config).all()):
        yield f"{where}: expected each token of the split in exactly one sequence, found otherwise"


def _may_end(
    found: npt.NDArray[np.int64], size: npt.NDArray[np.int64], config: PackingConfig
) -> npt.NDArray[np.bool_]:
    """Say of each piece whether it may end where its last segment does."""
    may: npt.NDArray[np.bool_] = found == size
    if config.overlong != "split":
        kept = config.row_length if config.overlong == "truncate" else 0
        may = np.where(size > config.row_length, found == kept, may)
    if config.min_sample_length > 1:  # its last row may be left out
        rest = size - found
        may = may | ((rest > 0) & (rest < config.min_sample_length))
    return may

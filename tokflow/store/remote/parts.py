"""Parts: a large object is put, got and copied in many, several at the same time."""

import itertools
from collections.abc import Iterable, Iterator

from tokflow.store.copies import SHORT_BYTES
from tokflow.store.remote.entry import Piece

PART_BYTES = 16 << 20
"""Of a part that is sent or got, where MAX_PARTS of them are enough."""
COPIED_BYTES = 1 << 30
"""The longest that one request copies; S3 would take 5 GiB."""
MAX_PARTS = 10_000

Part = list[Piece]


def ranges_of(num_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield where parts of an object begin and end; one of 0 bytes has none."""
    step = max(PART_BYTES, -(-num_bytes // MAX_PARTS))
    for start in range(0, num_bytes, step):
        yield start, min(num_bytes, start + step)


def parts_of(pieces: Iterable[Piece]) -> list[Part]:
    """Return pieces, end to end, as the parts of one object.

    A part is either one piece of at least SHORT_BYTES, or pieces that have so many bytes together;
    the last alone may have fewer. With SHORT_BYTES of 8, of pieces of 3, 20 and 1 bytes:

        [3 and 5 of the second] [the 15 others of the second] [1]

    They are longer where there would be more than MAX_PARTS.
    """
    parts: list[Part] = []
    waiting: Part = []
    merged = _merged(pieces)
    short = max(SHORT_BYTES, 3 * sum(map(len, merged)) // MAX_PARTS)
    for piece in merged:
        missing = short - sum(map(len, waiting))
        if waiting or len(piece) < short:
            waiting.append(_cut(piece, 0, min(missing, len(piece))))
            if len(piece) < missing:
                continue
            parts.append(waiting)
            waiting, piece = [], _cut(piece, missing, len(piece))
        if len(piece) >= short:
            parts += [[each] for each in _divided(piece, max(PART_BYTES, short))]
        elif piece:
            waiting = [piece]
    return parts + ([waiting] if waiting else [])


def _merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Return pieces that are not empty; those of one object that follow each other as one."""
    merged: list[Piece] = []
    for piece in filter(len, pieces):
        if merged and (merged[-1].key, merged[-1].stop) == (piece.key, piece.start):
            piece = Piece(piece.key, merged.pop().start, piece.stop)
        merged.append(piece)
    return merged


def is_copied(part: Part) -> bool:
    """Return whether a part is copied on the server, and not sent."""
    piece, *others = part
    return bool(piece.key) and not others and len(piece) >= SHORT_BYTES


def _divided(piece: Piece, part_bytes: int) -> Iterator[Piece]:
    """Yield a piece in as few as one request takes, all about as long."""
    num_parts = -(-len(piece) // (COPIED_BYTES if is_copied([piece]) else part_bytes))
    edges = [len(piece) * i // num_parts for i in range(num_parts + 1)]
    for start, stop in itertools.pairwise(edges):
        yield _cut(piece, start, stop)


def _cut(piece: Piece, start: int, stop: int) -> Piece:
    return Piece(piece.key, piece.start + start, piece.start + stop)

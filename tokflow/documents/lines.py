"""A stream of bytes cut at a separator."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Pieces:
    """Consecutive pieces of a stream, without their separators."""

    first: int
    """Ordinal of the first piece in the stream."""
    byte_offset: int
    """Of the first piece's first byte in the stream."""
    pieces: list[bytes]
    """Empty where a piece is too large."""
    is_too_large: bool = False
    """Whether this stands for one piece that is larger than the pieces may be."""


def cut(
    blocks: Iterable[bytes], separator: bytes, *, max_bytes: int, byte_offset: int = 0
) -> Iterator[Pieces]:
    r"""Yield the pieces of the stream, found from left to right, those of one block at a time.

    A separator ends a piece; what follows the last one is a piece only if it is not empty:
    with b"\n" both b"a\n\nb" and b"a\n\nb\n" have the pieces b"a", b"" and b"b". A piece of
    many blocks is joined once, at its end. One of more than `max_bytes` is named as soon as that
    is known, and then passed over without being held.
    """
    first, size = 0, 0  # size: of the unfinished piece, held or not
    unfinished: list[bytes] = []
    is_passed_over = False
    overlap = b""  # the end of the unfinished piece, where a separator may have begun
    for block in blocks:
        *pieces, last = (overlap + block).split(separator)
        if pieces and is_passed_over:
            first += 1
            byte_offset += size + len(pieces.pop(0)) + len(separator)
            size, is_passed_over = 0, False
        elif pieces:
            pieces[0] = b"".join((*unfinished, pieces[0]))
            unfinished, size = [], 0
        if pieces:
            found = Pieces(first, byte_offset, pieces)
            is_small = len(block) <= max_bytes and len(pieces[0]) <= max_bytes
            yield from (found,) if is_small else _within(found, len(separator), max_bytes)
            first += len(pieces)
            byte_offset += sum(map(len, pieces)) + len(separator) * len(pieces)
        kept = max(0, len(last) - len(separator) + 1)
        size += kept
        overlap = last[kept:]
        if not is_passed_over:
            unfinished.append(last[:kept])
            if size > max_bytes:
                yield Pieces(first, byte_offset, [], is_too_large=True)
                unfinished, is_passed_over = [], True
    if not is_passed_over and (remainder := b"".join((*unfinished, overlap))):
        yield from _within(Pieces(first, byte_offset, [remainder]), len(separator), max_bytes)


def _within(found: Pieces, separator_bytes: int, max_bytes: int) -> Iterator[Pieces]:
    """Yield the pieces, but for each that is too large what stands for it."""
    sizes = list(map(len, found.pieces))
    start, byte_offset = 0, found.byte_offset
    for index, size in enumerate([*sizes, max_bytes + 1]):
        if size > max_bytes:
            kept = found.pieces[start:index]
            if kept:
                yield Pieces(found.first + start, byte_offset, kept)
            byte_offset += sum(sizes[start:index]) + separator_bytes * len(kept)
            if index < len(sizes):
                yield Pieces(found.first + index, byte_offset, [], is_too_large=True)
                byte_offset += size + separator_bytes
            start = index + 1


def without_mark(blocks: Iterable[bytes]) -> tuple[int, Iterator[bytes]]:
    """Return the size of the byte order mark before a text, which may be 0, and the text."""
    blocks = iter(blocks)
    start = b""
    while len(start) < len(BYTE_ORDER_MARK) and (block := next(blocks, b"")):
        start += block
    text = start.removeprefix(BYTE_ORDER_MARK)
    return len(start) - len(text), chain([text], blocks)

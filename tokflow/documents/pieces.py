"""A stream of bytes cut at a separator."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Pieces:
    """Consecutive pieces of a stream, without their separators."""

    first: int
    """Ordinal of the first piece in the stream."""
    byte_offset: int
    """Of the first piece's first byte in the stream."""
    pieces: list[bytes]


def cut(blocks: Iterable[bytes], separator: bytes) -> Iterator[Pieces]:
    r"""Yield the pieces of the stream, found from left to right, those of one block at a time.

    A separator ends a piece; what follows the last one is a piece only if it is not empty:
    with b"\n" both b"a\n\nb" and b"a\n\nb\n" have the pieces b"a", b"" and b"b". A piece of
    many blocks is joined once, at its end.
    """
    first, byte_offset = 0, 0
    unfinished: list[bytes] = []
    overlap = b""  # the end of the unfinished piece, where a separator may have begun
    for block in blocks:
        pieces = (overlap + block).split(separator)
        if len(pieces) > 1:
            pieces[0] = b"".join((*unfinished, pieces[0]))
            unfinished, last = [], pieces.pop()
            yield Pieces(first, byte_offset, pieces)
            first += len(pieces)
            byte_offset += sum(map(len, pieces)) + len(separator) * len(pieces)
        else:
            last = pieces[0]
        kept = max(0, len(last) - len(separator) + 1)
        unfinished.append(last[:kept])
        overlap = last[kept:]
    if remainder := b"".join((*unfinished, overlap)):
        yield Pieces(first, byte_offset, [remainder])


def cut_lines(blocks: Iterable[bytes]) -> Iterator[Pieces]:
    r"""Yield the lines of the stream, which end at \n, without a byte order mark before them."""
    for lines in cut(blocks, b"\n"):
        if lines.first == 0 and lines.pieces[0].startswith(BYTE_ORDER_MARK):
            size = len(BYTE_ORDER_MARK)
            yield Pieces(0, size, [lines.pieces[0][size:], *lines.pieces[1:]])
        else:
            yield lines

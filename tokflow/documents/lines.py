"""A stream of bytes cut at a separator."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, groupby

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class LineBatch:
    """Consecutive lines of a stream, or texts between other separators, without their ends."""

    separator: bytes
    first: int
    """Ordinal of the first line in the stream."""
    byte_offset: int
    """Of the first line's first byte in the stream."""
    lines: list[bytes]
    """Empty where a line is too large."""
    is_too_large: bool = False
    """True if this stands for one line that is larger than lines may be."""

    def place(self, index: int) -> tuple[int | None, int]:
        """Return the line, from 1, and the byte offset of one; no line where others end texts."""
        line = self.first + index + 1 if self.separator == b"\n" else None
        return line, self._offsets[index]

    @cached_property
    def _offsets(self) -> list[int]:
        sizes = (len(line) + len(self.separator) for line in self.lines)
        return list(accumulate(sizes, initial=self.byte_offset))


def cut(
    blocks: Iterable[bytes], separator: bytes, *, max_bytes: int, byte_offset: int = 0
) -> Iterator[LineBatch]:
    r"""Yield the lines of the stream, found from left to right, those of one block at a time.

    A separator ends a line; what follows the last one is a line only if it is not empty:
    with b"\n" both b"a\n\nb" and b"a\n\nb\n" have the lines b"a", b"" and b"b". A line of
    many blocks is joined once, at its end. One of more than `max_bytes` is named as soon as that
    is known, and then passed over without being held.
    """
    first, size = 0, 0  # size: of the unfinished line, held or not
    unfinished: list[bytes] = []
    is_passed_over = False
    overlap = b""  # the end of the unfinished line, where a separator may have begun
    for block in blocks:
        *lines, last = (overlap + block).split(separator)
        if lines and is_passed_over:
            first += 1
            byte_offset += size + len(lines.pop(0)) + len(separator)
            size, is_passed_over = 0, False
        elif lines:
            lines[0] = b"".join((*unfinished, lines[0]))
            unfinished, size = [], 0
        if lines:
            batch = LineBatch(separator, first, byte_offset, lines)
            is_small = len(block) <= max_bytes and len(lines[0]) <= max_bytes
            first += len(lines)
            byte_offset += sum(map(len, lines)) + len(separator) * len(lines)
            yield from (batch,) if is_small else _within(batch, max_bytes)
            del batch, lines  # so that the next take their place in memory: a tenth of the time
        kept = max(0, len(last) - len(separator) + 1)
        size += kept
        overlap = last[kept:]
        if not is_passed_over:
            unfinished.append(last[:kept])
            if size > max_bytes:
                yield LineBatch(separator, first, byte_offset, [], is_too_large=True)
                unfinished, is_passed_over = [], True
    if not is_passed_over and (remainder := b"".join((*unfinished, overlap))):
        yield from _within(LineBatch(separator, first, byte_offset, [remainder]), max_bytes)


def _within(found: LineBatch, max_bytes: int) -> Iterator[LineBatch]:
    """Yield the lines, but for each that is too large what stands for it."""
    for is_too_large, alike in groupby(
        range(len(found.lines)), lambda index: len(found.lines[index]) > max_bytes
    ):
        for indices in ([index] for index in alike) if is_too_large else [list(alike)]:
            _, byte_offset = found.place(indices[0])
            lines = [] if is_too_large else [found.lines[index] for index in indices]
            first = found.first + indices[0]
            yield replace(
                found, first=first, byte_offset=byte_offset, lines=lines, is_too_large=is_too_large
            )


def without_mark(blocks: Iterable[bytes]) -> tuple[int, Iterator[bytes]]:
    """Return the size of the byte order mark before a text, which may be 0, and the text."""
    blocks = iter(blocks)
    start = b""
    while len(start) < len(BYTE_ORDER_MARK) and (block := next(blocks, b"")):
        start += block
    text = start.removeprefix(BYTE_ORDER_MARK)
    return len(start) - len(text), chain([text], blocks)

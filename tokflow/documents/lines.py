"""A stream of bytes cut at a separator."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, groupby
from pathlib import Path

import numpy as np

from tokflow.documents.compression import DECOMPRESSORS, read_blocks
from tokflow.documents.file_range import Before, OpenRange, Range
from tokflow.documents.zst_frames import frames_of
from tokflow.raw.streamed import read_until

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SEARCH_BYTES = 64 * 1024
_BLOCK_BYTES = 500_000
"""Read at once, however large the batches are: what fits into a core's cache takes a tenth less
time, and the interpreter, which cutting and decoding hold, is free for the engine's thread after
1 ms and not after 15."""
_COUNT_BYTES = 2 * 1024 * 1024


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


def read_text(
    path: Path, within: OpenRange | None, *, block_bytes: int, has_mark: bool
) -> tuple[int, Iterator[bytes]]:
    """Return the byte at which a text begins, and the text in blocks of at most `block_bytes`; all
    of it, or a range.

    With `has_mark` a byte order mark at the start of the file is not in it.
    """
    block_bytes = min(block_bytes, _BLOCK_BYTES)
    byte_offset, blocks = 0, read_blocks(path, block_bytes=block_bytes)
    if within is not None:
        byte_offset, blocks = _lines_within(path, within.range, block_bytes)
        blocks = within.counted(blocks)
    if has_mark and byte_offset == 0:
        return without_mark(blocks)
    return byte_offset, blocks


def count_before(
    path: Path, within: Range, *, blank: bytes | None, max_bytes: int, num_each: int
) -> Before:
    """Return the lines before a range of a text file, and their rows, so many for each line.

    Lines of nothing but the bytes `blank` are no rows, unless they are too large to be looked at;
    None: every line is. All text before the range is read, at 2 to 4 GB/s on one core, where there
    are blank lines a second time at 0.5 to 1.4.
    """
    num_lines = _count_full_lines(_text_before(path, within, blank), blank or b"")
    if num_lines is not None:
        return Before(num_lines, num_lines * num_each)
    num_lines = num_blank = 0
    for batch in cut(_text_before(path, within, blank), b"\n", max_bytes=max_bytes):
        num_lines += 1 if batch.is_too_large else len(batch.lines)
        num_blank += sum(1 for line in batch.lines if not line.strip(blank))
    return Before(num_lines, (num_lines - num_blank) * num_each)


def _text_before(path: Path, within: Range, blank: bytes | None) -> Iterator[bytes]:
    _, blocks = _lines_within(path, Range(0, within.start), _COUNT_BYTES)
    return blocks if blank is None else without_mark(blocks)[1]


def _count_full_lines(blocks: Iterable[bytes], blank: bytes) -> int | None:
    """Return the lines of a text, or None where one begins as those of `blank` bytes do."""
    is_blank = np.zeros(256, dtype=bool)
    is_blank[list(blank and blank + b"\n")] = True
    num_lines, is_line_start = 0, True
    for block in filter(None, blocks):
        data = np.frombuffer(block, dtype=np.uint8)
        ends = np.flatnonzero(data == ord("\n"))
        num_lines += len(ends)
        is_complete = data[-1] == ord("\n")
        firsts = data[ends[: len(ends) - is_complete] + 1]
        if is_blank[firsts].any() or (is_line_start and is_blank[data[0]]):
            return None
        is_line_start = is_complete
    return num_lines + (not is_line_start)


def _lines_within(path: Path, within: Range, block_bytes: int) -> tuple[int, Iterator[bytes]]:
    """Return where the first line begins that begins in the range, and its lines in blocks."""
    first, stop = (_line_start(path, position) for position in (within.start, within.stop))
    return first, _read_bytes(path, first, stop, block_bytes)


def _line_start(path: Path, position: int) -> int:
    """Return where the first line begins at that byte or after it; or else the text's end."""
    if position == 0:
        return 0
    position -= 1  # of the line end before it
    for block in _read_bytes(path, position, sys.maxsize, _SEARCH_BYTES):
        if (index := block.find(b"\n")) >= 0:
            return position + index + 1
        position += len(block)
    return position


def _read_bytes(path: Path, start: int, stop: int, block_bytes: int) -> Iterator[bytes]:
    """Yield the text between two bytes of it; of .zst in frames, whatever their size."""
    if path.suffix.lower() in DECOMPRESSORS:
        if (frames := frames_of(path)) is None:
            raise ValueError(f"{path}: expected a table of frames to read a range, found none")
        yield from frames.read(start, stop)
        return
    with path.open("rb", buffering=0) as file:
        read_until(file, stop)
        file.seek(start)
        while block := file.read(max(0, min(block_bytes, stop - start))):
            yield block
            start += len(block)

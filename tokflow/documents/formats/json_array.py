"""Elements of a JSON array, cut from blocks of bytes as JSON lines are cut into lines."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tokflow.documents.batch import Place, excerpt
from tokflow.documents.decoding import refuse_other_kinds
from tokflow.documents.formats.txt import LineBatch, cut
from tokflow.documents.ranges import OpenRange
from tokflow.errors import RawFileError

_BLANK = b" \t\r\n"
_LOOKED_AT_BYTES = 4096
"""Bytes of a text from which its kind is known."""
_REST_OF_STRING = rb'[^"\\]*+(?:\\.[^"\\]*+)*+("?)'
_IN_STRING = re.compile(_REST_OF_STRING, re.DOTALL)
_IN_ELEMENT = re.compile(rb'"%b|[\[\]{}]' % _REST_OF_STRING, re.DOTALL)
_IN_ARRAY = re.compile(rb'"%b|[\[\]{},]' % _REST_OF_STRING, re.DOTALL)
_START_OF_ARRAY = re.compile(
    rb"\[\s*(?:[^\sA-Za-z]|tru|fal|nul|(?:t|tr|f|fa|n|nu)?\Z)"  # or else a line, as [INFO]
)
_LINE_BEFORE_OTHERS = re.compile(rb"\[[^\n]*\][ \t\r]*\n\s*[^\s,\[\]}]")
"""A line that no array goes on behind, as [1, 2] before an object."""
_OBJECT_OF_LINES = re.compile(rb'\{[ \t\r]*\n\s*"')


@dataclass(frozen=True, slots=True)
class ElementBatch:
    """Consecutive elements of an array, as `LineBatch` has lines."""

    lines: list[bytes]
    """Empty where an element is too large."""
    places: list[Place]
    """Line and byte of the first byte of each."""
    is_too_large: bool = False
    """True if this stands for one element that is larger than they may be."""

    def release(self) -> None:
        """Free the elements; their places stay."""
        self.lines.clear()

    def place(self, index: int) -> Place:
        """Return the line, from 1, and the byte offset of one."""
        return self.places[index]


def cut_records(
    blocks: Iterable[bytes],
    path: Path,
    *,
    max_bytes: int,
    byte_offset: int = 0,
    within: OpenRange | None = None,
) -> Iterator[LineBatch | ElementBatch]:
    """Yield the lines of a JSON text, with their ends, or the elements where all of it is one
    array; as `txt.cut` does, no more than a block or an element in memory.

    Raises: RawFileError where the text is one object over several lines, or the array has no end.
    """
    start, is_start = b"", within is None or within.range.start == 0
    blocks = iter(blocks)
    text = b""
    while is_start and len(text) < _LOOKED_AT_BYTES and (block := next(blocks, b"")):
        start += block
        text = start.lstrip(_BLANK)[:_LOOKED_AT_BYTES]
    blocks = chain([start], blocks) if start else blocks
    refuse_other_kinds(text, path, expected="JSON")
    if _OBJECT_OF_LINES.match(text):
        raise RawFileError(
            where=path,
            expected="JSON lines, or one array of records",
            found="an object over several lines",
            remedy="write each record on a line of its own, or all in one array",
        )
    if _START_OF_ARRAY.match(text) and not _LINE_BEFORE_OTHERS.match(text):
        return _Array(path, max_bytes, byte_offset).elements(blocks)
    return cut(
        blocks,
        b"\n",
        max_bytes=max_bytes,
        byte_offset=byte_offset,
        within=within,
        keeps_ends=True,
    )


class _Array:
    """An array of which the blocks are looked at one after another."""

    def __init__(self, path: Path, max_bytes: int, byte_offset: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._depth = 0
        self._is_in_string = self._is_escaped = self._has_ended = False
        self._held: list[bytes] = []
        """Bytes of the unfinished element; none of one that is too large."""
        self._size = 0
        """Bytes since its first that is not white space."""
        self._is_passed_over = False
        self._line, self._byte_offset = 1, byte_offset
        """Place of the next byte."""
        self._place: Place = (1, byte_offset)
        """Place of the first byte of the unfinished element."""

    def elements(self, blocks: Iterable[bytes]) -> Iterator[ElementBatch]:
        """Yield the elements that end in each block. Raises: RawFileError."""
        for block in blocks:
            done: list[tuple[bytes, Place]] = []
            start = 0
            for stop in self._edges(block):
                if place := self._hold(block[start:stop]):
                    yield from _batches(done)
                    yield ElementBatch([], [place], is_too_large=True)
                    done = []
                if element := self._finished():
                    done.append(element)
                if self._has_ended and (last := block[stop : stop + 1]) != b"]":
                    raise self._error(f"{excerpt(last)} where its ] would be")
                start = stop + 1
            yield from _batches(done)
            rest = block[start:]
            if self._has_ended and rest.strip(_BLANK):
                raise self._error(f"{excerpt(rest.strip(_BLANK))} after its end")
            if not self._has_ended and (place := self._hold(rest)):
                yield ElementBatch([], [place], is_too_large=True)
        if not self._has_ended:
            raise self._error("the end of the file in it")

    def _edges(self, block: bytes) -> Iterator[int]:
        """Yield where the array begins, commas between its elements, and where it ends."""
        position = 0
        if self._is_in_string:
            match = _IN_STRING.match(block, int(self._is_escaped))
            position = self._after_string(match, block)
        while not self._is_in_string and not self._has_ended:
            pattern = _IN_ARRAY if self._depth <= 1 else _IN_ELEMENT
            if (match := pattern.search(block, position)) is None:
                break
            first, position = block[match.start()], match.end()
            if first == ord('"'):
                position = self._after_string(match, block)
                continue
            self._depth += (first in b"[{") - (first in b"]}")
            self._has_ended = self._depth == 0
            if self._depth <= (0 if first in b"]}" else 1):
                yield match.start()

    def _after_string(self, match: re.Match[bytes] | None, block: bytes) -> int:
        """Return where a string ends; or that the block does, in it."""
        position = match.end() if match else len(block)
        self._is_in_string = match is None or not match[1]
        self._is_escaped = self._is_in_string and position < len(block)
        return position

    def _hold(self, piece: bytes) -> Place | None:
        """Take bytes of an element; return its place if they make it too large. White space around
        it is none of it."""
        text = piece if self._size else piece.lstrip(_BLANK)
        if not self._size:
            num_blank = len(piece) - len(text)
            line = self._line + piece.count(b"\n", 0, num_blank)
            self._place = (line, self._byte_offset + num_blank)
        self._line += piece.count(b"\n")
        self._byte_offset += len(piece)
        room = max(0, self._max_bytes - self._size)
        self._size += len(text)
        if self._is_passed_over:
            return None
        if len(text) > room and len(text.rstrip(_BLANK)) > room:
            self._is_passed_over, self._held = True, []
            return self._place
        self._held.append(text[:room])
        return None

    def _finished(self) -> tuple[bytes, Place] | None:
        """Return the element that ends here with its place; None where there is nothing, or it was
        too large."""
        element = b"".join(self._held).rstrip(_BLANK)
        self._held, self._size, self._is_passed_over = [], 0, False
        self._byte_offset += 1  # of what ends it
        return (element, self._place) if element else None

    def _error(self, found: str) -> RawFileError:
        return RawFileError(
            where=f"{self._path}, line {self._line:,}",
            expected="one JSON array from the beginning of the file to its end",
            found=found,
            remedy="download or make the file again",
        )


def _batches(done: list[tuple[bytes, Place]]) -> Iterator[ElementBatch]:
    """Yield the elements in one batch, if there are any."""
    if done:
        yield ElementBatch([element for element, _ in done], [place for _, place in done])

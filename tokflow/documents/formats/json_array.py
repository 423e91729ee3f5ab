"""Elements of a JSON array, cut from blocks of bytes as JSON lines are cut into lines.

They are found by Python's json: one that is no JSON ends the file with an error, and NaN, which
that takes, is left to the reader.
"""

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from tokflow.documents.batch import Place, excerpt
from tokflow.documents.decoding import refuse_other_kinds
from tokflow.documents.formats.txt import LineBatch, cut
from tokflow.documents.ranges import OpenRange
from tokflow.errors import BadContentError

_BLANKS = b" \t\r\n"
_LOOKED_AT_BYTES = 4096
"""Bytes of a text from which its kind is known."""
_VALUE, _AFTER = re.compile(r"[^ \t\r\n,]"), re.compile(r"[^ \t\r\n]")
_CUT_CHARS = 16
"""Characters at the end of what was read that can be the beginning of a literal or an escape."""
_DECODER = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)
ELEMENT_BYTES = 200_000_000
"""Most bytes of an element of an array; records that are larger belong on lines of their own."""

_START_OF_ARRAY = re.compile(
    rb"\[\s*(?:[^\sA-Za-z]|tru|fal|nul|(?:t|tr|f|fa|n|nu)?\Z)"  # or else a line, as [INFO]
)
_LINE_BEFORE_OTHERS = re.compile(rb"\[[^\n]*\][ \t\r]*\n\s*[^\s,\[\]}]")
"""A line that no array goes on behind, as [1, 2] before an object."""
_OBJECT_OF_LINES = re.compile(rb'\{[ \t\r]*\n\s*"')


def cut_records(
    blocks: Iterable[bytes],
    path: Path,
    *,
    max_bytes: int,
    byte_offset: int = 0,
    within: OpenRange | None = None,
) -> Iterator[LineBatch]:
    """Yield the lines of a JSON text, with their ends, or the elements where all of it is one
    array; as `txt.cut` does, no more than a block or an element in memory, as Python's objects too.

    Raises: BadContentError where the text is one object over several lines, or the array has no
    end.
    """
    start, is_start = b"", within is None or within.range.start == 0
    blocks = iter(blocks)
    text = b""
    while is_start and len(text) < _LOOKED_AT_BYTES and (block := next(blocks, b"")):
        start += block
        text = start.lstrip(_BLANKS)[:_LOOKED_AT_BYTES]
    blocks = chain([start], blocks) if start else blocks
    refuse_other_kinds(text, path, expected="JSON")
    if _OBJECT_OF_LINES.match(text):
        expected = "JSON lines, or one array of records"
        found = "an object over several lines"
        remedy = "write each record on a line of its own, or all in one array"
        raise BadContentError(where=path, expected=expected, found=found, remedy=remedy)
    if _START_OF_ARRAY.match(text) and not _LINE_BEFORE_OTHERS.match(text):
        return _elements(blocks, path, max_bytes, byte_offset)
    return cut(
        blocks, b"\n", max_bytes=max_bytes, byte_offset=byte_offset, within=within, keeps_ends=True
    )


def _elements(
    blocks: Iterable[bytes], path: Path, max_bytes: int, byte_offset: int
) -> Iterator[LineBatch]:
    """Yield the elements that end in each block; one that is too large alone, without its bytes.

    Raises: BadContentError.
    """
    lines, places = list[bytes](), list[Place]()
    most = min(2 * max_bytes, ELEMENT_BYTES)
    for element, place in _find_elements(blocks, path, most, byte_offset):
        if element is not None and len(element) <= max_bytes:
            lines.append(element)
            places.append(place)
            continue
        yield LineBatch(b"", 0, 0, lines, [], known_places=places)
        lines, places = [], []
        if element is not None:
            yield LineBatch(b"", 0, 0, [], [], is_too_large=True, known_places=[place])


def _find_elements(
    blocks: Iterable[bytes], path: Path, most: int, byte_offset: int
) -> Iterator[tuple[bytes | None, Place]]:
    """Yield the elements of an array, each with its place; None behind those that end in a block.

    `most`: bytes of an element that ends no file; twice those of a document, and no more than
    memory has room for, of which Python's json takes some 17 times as many.
    """
    decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
    beyond = f"an element of more than {most:,} bytes, which is not read"
    held, enough, line, state = "", 0, 1, "before"
    for block in chain(blocks, [None]):
        held += decode(block or b"", block is None)
        if block is not None and len(held) < enough:
            continue
        done = 0
        while state != "behind" and (value := _VALUE.search(held, done)) is not None:
            start, end = value.span()
            line += held.count("\n", done, start)
            byte_offset += len(_encoded(held[done:start]))
            done = start
            try:
                if state == "in" and value[0] != "]" and (end := _end_of_element(held, start)) == 0:
                    break
            except ValueError as error:
                raise _not_whole(path, line, str(error)) from None
            element, done = _encoded(held[start:end]), end
            if state == "before" or value[0] == "]":
                state = "in" if state == "before" else "behind"
            elif len(element) > most:
                raise _not_whole(path, line, beyond)
            else:
                yield element, (line, byte_offset)
            line, byte_offset = line + element.count(b"\n"), byte_offset + len(element)
        yield None, (line, byte_offset)
        held = held[done:]
        rest = held.strip(_BLANKS.decode())
        if state == "behind" and rest:
            raise _not_whole(path, line, f"{excerpt(_encoded(rest))} after its end")
        if len(rest) > most:
            raise _not_whole(path, line, beyond)
        enough = 2 * len(held)  # looked at again when it has doubled
    if state != "behind":
        raise _not_whole(path, line, "the end of the file in it")


def _not_whole(path: Path, line: int, found: str) -> BadContentError:
    where = f"{path}, line {line:,}"
    expected = "one JSON array from the beginning of the file to its end"
    remedy = "download or make the file again"
    return BadContentError(where=where, expected=expected, found=found, remedy=remedy)


def _end_of_element(held: str, start: int) -> int:
    """Return where the element that begins at `start` ends, 0 if more of it has to be read.

    Raises: ValueError where it is no JSON, or something else follows it than an array has.
    """
    try:
        end = _DECODER.raw_decode(held, start)[1]
    except RecursionError:
        raise ValueError("too many nested values") from None
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated") or error.pos > len(held) - _CUT_CHARS:
            return 0
        raise ValueError(f"{excerpt(_encoded(held[start:]))} ({error.msg})") from None
    after = _AFTER.search(held, end)
    if after is not None and after[0] not in ",]":
        raise ValueError(f"{excerpt(_encoded(after[0]))} where its ] would be")
    return end if after is not None else 0  # more may belong to it, as to a number


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")

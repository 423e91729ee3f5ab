r"""Ranges of csv and tsv files, cut where records begin, also where line ends in quotes are text.

A file is cut where each quote begins or ends a field, or is one of two in quotes, as writers of
csv have it: then a line end is text if the number of quotes before it is odd. One with a quote
anywhere else (`5" disk`) is read whole, and so is one with quotes and, outside of them, a \r that
ends no line: the reader takes quotes after it for text.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokflow.documents.config import DocumentsConfig
from tokflow.documents.encodings import marked_encoding
from tokflow.documents.file_range import Range, even_edges
from tokflow.documents.formats.csv_records import Dialect, dialect_of
from tokflow.pools.cores import num_cores

_SCAN_BYTES = 512 * 1024


def ranges_of_csv(path: Path, config: DocumentsConfig, range_bytes: int) -> tuple[Range, ...]:
    """Return ranges of about `range_bytes`, each from where a record begins, or empty within a
    long one; none for a file that has to be read whole.

    Threads, one for each core, read all of the file.
    """
    with path.open("rb") as file:
        _, text_start = marked_encoding(file.read(4))
    edges = even_edges(path.stat().st_size, range_bytes)
    scan = partial(_scan, path, dialect_of(path, config), text_start)
    with ThreadPoolExecutor(num_cores()) as pool:
        cases = _true_cases(pool.map(scan, edges, edges[1:]))
    has_quotes = any(case.has_quotes for case in cases)
    if has_quotes and any(case.has_odd_quotes or case.has_odd_returns for case in cases):
        return ()
    return _joined(cases, edges[-1])


@dataclass(frozen=True, slots=True)
class _Block:
    """Bytes of a file, and what is in them. Places are indices in `data`."""

    data: npt.NDArray[np.uint8]
    """The bytes, and one more before and after them."""
    begin: int
    """Place of the first in the file."""
    quotes: npt.NDArray[np.int64]
    returns: npt.NDArray[np.int64]
    r"""Each \r that ends no line, unless in quotes."""
    line_ends: npt.NDArray[np.int64]
    """One before each line that begins here."""


@dataclass(slots=True)
class _Case:
    """A range of bytes, if it begins outside of quotes, or else if it begins in them."""

    is_in_quotes: bool
    """At the end of what was scanned."""
    has_quotes: bool = False
    has_odd_quotes: bool = False
    """True if one neither begins nor ends a field; nothing else is known then."""
    has_odd_returns: bool = False
    num_lines: int = 0
    """Lines that begin in the range, in quotes or not."""
    start: int | None = None
    """Byte at which the first record begins that begins in the range."""
    lines_before: int = 0
    """Line ends before it, since the line in which the range begins."""

    def scan(self, block: _Block, delimiter: bytes) -> None:
        """Take the next bytes."""
        data, quotes = block.data, block.quotes
        opening, closing = quotes[self.is_in_quotes :: 2], quotes[not self.is_in_quotes :: 2]
        may_open, may_close = _table(delimiter + b'\n"'), _table(delimiter + b'\r\n"')
        if not (may_open[data[opening - 1]].all() and may_close[data[closing + 1]].all()):
            self.has_odd_quotes = True
            return
        self.has_quotes |= len(quotes) > 0
        self.has_odd_returns |= len(self._outside(block.returns, quotes)) > 0
        if self.start is None and len(ends := self._outside(block.line_ends, quotes)):
            self.start = block.begin + int(ends[0])
            self.lines_before = self.num_lines + int(np.searchsorted(block.line_ends, ends[0])) + 1
        self.num_lines += len(block.line_ends)
        self.is_in_quotes ^= len(quotes) % 2 == 1

    def _outside(
        self, places: npt.NDArray[np.int64], quotes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return those that are not in quotes."""
        is_outside = (np.searchsorted(quotes, places) + self.is_in_quotes) % 2 == 0
        outside: npt.NDArray[np.int64] = places[is_outside]
        return outside


def _scan(
    path: Path, dialect: Dialect, text_start: int, start: int, stop: int
) -> tuple[_Case, _Case]:
    """Return what is between two bytes, for both cases."""
    cases = _Case(is_in_quotes=False), _Case(is_in_quotes=True)
    with path.open("rb") as file:
        for begin in range(max(start, text_start), stop, _SCAN_BYTES):
            num_bytes = min(_SCAN_BYTES, stop - begin)
            file.seek(max(begin - 1, text_start))
            before = dialect.delimiter if begin == text_start else file.read(1)
            data = before + file.read(num_bytes + 1)
            block = _block(data, num_bytes, begin, has_quotes=dialect.has_quotes)
            possible = [case for case in cases if not case.has_odd_quotes]
            for case in possible:
                case.scan(block, dialect.delimiter)
            if not possible:
                break
    return cases


def _block(data: bytes, num_bytes: int, begin: int, *, has_quotes: bool) -> _Block:
    data += b"\n" * (num_bytes + 2 - len(data))  # at the end of the file
    array = np.frombuffer(data, dtype=np.uint8)
    none = np.zeros(0, dtype=np.int64)
    quotes = returns = none
    if has_quotes and b'"' in data:
        quotes = np.flatnonzero(array[1:-1] == ord('"')) + 1
    if b"\r" in data:
        returns = np.flatnonzero(array[1:-1] == ord("\r")) + 1
        returns = returns[~_table(b"\r\n")[array[returns + 1]]]
    return _Block(array, begin, quotes, returns, np.flatnonzero(array[:-2] == ord("\n")))


def _table(kept: bytes) -> npt.NDArray[np.bool_]:
    """Return whether each of the 256 bytes is among those."""
    table = np.zeros(256, dtype=bool)
    table[list(kept)] = True
    return table


def _true_cases(scans: Iterable[tuple[_Case, _Case]]) -> list[_Case]:
    """Return what each range is, up to the first with a quote where none should be."""
    cases: list[_Case] = []
    is_in_quotes = False
    for both in scans:
        cases.append(both[is_in_quotes])
        is_in_quotes = cases[-1].is_in_quotes
        if cases[-1].has_odd_quotes:
            break
    return cases


def _joined(cases: Sequence[_Case], num_bytes: int) -> tuple[Range, ...]:
    """Return ranges from record to record, the first from the beginning of the file."""
    num_lines = accumulate((case.num_lines for case in cases), initial=0)
    starts = [
        None if case.start is None else (case.start, before + case.lines_before)
        for case, before in zip(cases, num_lines, strict=False)
    ]
    ranges: list[Range] = []
    after = (num_bytes, 0)  # an empty range has no lines whose number might be told
    for start in reversed([(0, 0), *starts[1:]]):
        begin = start or after  # within a record it is where the next begins
        ranges.append(Range(begin[0], after[0], lines_before=begin[1]))
        after = begin
    return tuple(reversed(ranges))

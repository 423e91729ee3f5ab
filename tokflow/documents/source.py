"""Documents of a partition, in batches: of its raw file, or of all files of a group in order."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from tokflow.documents.batch import BadDocument, Batch, ParsedBatch, Reject, Render, joined
from tokflow.documents.config import DocumentsConfig, Limit
from tokflow.documents.formats import reader_of
from tokflow.documents.ranges import OpenRange, Range, open_range
from tokflow.documents.transform import Transform
from tokflow.errors import BadDocumentError, RawFileError, TokflowError
from tokflow.raw.remote_file import RemoteFile
from tokflow.store.tables import text_buffers

BATCH_BYTES = 2_000_000
"""Text of a batch, unless another size is asked for."""

BYTES_PER_TOKEN = 4
"""Typical text of a token, by which the text that a limit of tokens takes is estimated."""

_MIN_READ_BYTES = 64 * 1024
"""Read at once, however small the batches are."""
_FILES_AHEAD = 8
"""Files of a group, each of which may be small, that are fetched while one is read."""

OnReject = Callable[[Path, Reject], None]
Encode = Callable[[Batch], Batch]
"""Returns a batch with its tokens."""


def is_accepted(config: DocumentsConfig, *, num_rejects: int) -> bool:
    """Return whether a raw file with this number of bad documents may be taken."""
    return num_rejects <= (0 if config.on_bad_document == "error" else config.max_rejects)


class DocumentSource:
    """The raw files of a partition, or a range of it, read as one.

    Rows count on from file to file. A range of one file is one of `ranges_of`; of several it is
    of files: the first, and the one after the last.
    """

    def __init__(
        self, paths: Sequence[Path], config: DocumentsConfig, *, within: Range | None = None
    ) -> None:
        self._config = config
        is_of_files = within is not None and len(paths) > 1
        self.paths = tuple(paths[within.start : within.stop] if within and is_of_files else paths)
        """The files that are read."""
        self._range = None if is_of_files else within
        self._within = None if self._range is None else self.open_range()
        self._first_rows: list[int] = []
        self.num_rows: list[int] = []
        """Documents, bad ones and records left out by a transform, of each file that was read to
        its end, or to its limit."""
        self.num_left_out = 0
        """Records that a transform left out."""
        self.num_records = 0
        """Records; without a transform, as many as rows."""
        self.num_uncut_files = 0
        """txt files in which the separator of documents occurs nowhere."""

    def batches(
        self,
        *,
        batch_bytes: int = BATCH_BYTES,
        on_reject: OnReject | None = None,
        render: Render | None = None,
        encode: Encode | None = None,
    ) -> Iterator[Batch]:
        """Yield the documents in batches of about `batch_bytes` of text, which may be of several
        files: small ones joined, large ones cut.

        No batch is empty; a document larger than a batch is a batch of its own. Which documents
        there are, and their rows, depends on the files and the config alone. Each is either in a
        batch or given to `on_reject`, in order: with its file, and with its row there or, of a
        range of it, in the range; `max_rejects` is of all files together, and limits are of each.
        `render`, from `tokflow.tokenizers.chat.renderer`, makes texts of messages. With `encode` a
        limit of tokens holds, too, and batches have the tokens that it made.

        Memory holds a few batches, or the largest document twice, whatever the size of a file; of
        a parquet file a page and its dictionary twice as well, and of an Arrow file a record batch.

        Errors name row and line of the file, for which the text before a range is read.

        Raises:
            ConfigError: a file has no such column, or its format is not known.
            RawFileError: a file is missing, damaged or cut short.
            BadDocumentError: a record is no document, or too many are not.
        """
        if self._config.is_rendered and render is None:
            raise TypeError("messages are no text: give `render`, of `open_renderer`")
        waiting: list[Batch] = []
        num_bytes = 0
        for batch in self._accepted(batch_bytes, on_reject, render, encode):
            waiting.append(batch)
            num_bytes += batch.texts.nbytes  # offsets included, for all texts may be empty
            if num_bytes >= batch_bytes * 3 // 4:
                whole = joined(waiting)
                waiting, num_bytes = [], 0
                del batch
                yield from _cut(whole, batch_bytes)
                del whole
        if waiting:
            yield from _cut(joined(waiting), batch_bytes)

    def _accepted(
        self,
        batch_bytes: int,
        on_reject: OnReject | None,
        render: Render | None,
        encode: Encode | None,
    ) -> Iterator[Batch]:
        """Yield the documents in batches of any size; the bad ones are errors or rejects."""
        config = self._config
        transform = Transform(config) if config.transform is not None else None
        first = num_rejects = 0
        for number, path in enumerate(self.paths):
            first_ahead = 0 if number == 0 else number + _FILES_AHEAD
            for later in self.paths[first_ahead : number + _FILES_AHEAD + 1]:
                if isinstance(later, RemoteFile):  # fetched while this one is read
                    later.read_ahead()
            self._first_rows.append(first)
            num_rows = 0
            parsed = self._numbered(path, batch_bytes, transform, render)
            if config.limit.ends_early:
                parsed = _limited(config.limit, parsed, encode, first)
            for found in parsed:
                num_rows += found.num_rows
                self.num_left_out += len(found.left_out)
                self.num_records += found.num_records
                self.num_uncut_files += found.is_uncut
                for bad in found.bad:
                    num_rejects += 1
                    line, at = bad.place
                    # Of text that is recoded, offsets are not those of the file.
                    place = line, at if config.encoding == "utf-8" else None
                    if not is_accepted(config, num_rejects=num_rejects):
                        raise self._error(bad._replace(place=place), path)
                    if on_reject is not None:
                        reason = f"expected {bad.problem.expected}, found {bad.problem.found}"
                        on_reject(path, Reject(bad.row, *place, reason, record=bad.record))
                if len(found.batch.rows):
                    yield replace(found.batch, rows=found.batch.rows + first)
                del found
            self.num_rows.append(num_rows)
            first += num_rows

    def _numbered(
        self, path: Path, batch_bytes: int, transform: Transform | None, render: Render | None
    ) -> Iterator[ParsedBatch]:
        """Yield what is in a raw file, rows and records counted from its beginning, about
        `batch_bytes` at once; `transform` makes records of what the reader finds, or documents, and
        `render` documents of chats.

        Raises: ConfigError, RawFileError.
        """
        read = reader_of(path, self._config).read
        try:
            path.open("rb").close()
        except OSError as error:
            raise RawFileError(
                where=path,
                expected="a file that can be read",
                found=f"{error.strerror}",
                remedy="correct the path or the permissions",
            ) from error
        at_once, tokens = max(batch_bytes, _MIN_READ_BYTES), self._config.limit.tokens
        if tokens is not None:
            at_once = min(at_once, max(tokens * BYTES_PER_TOKEN, _MIN_READ_BYTES))
        found: Iterator[ParsedBatch] = read(path, self._config, at_once, self._within)
        rows = records = 0
        found = found if transform is None else map(transform, found)
        for some in found if render is None else map(render, found):
            numbered = some.moved(rows, records)
            rows, records = rows + some.num_rows, records + some.num_records
            del some  # which keeps the lines
            yield numbered
            del numbered  # a large document is gone when the next is read

    def _error(self, bad: BadDocument, path: Path) -> BadDocumentError:
        """Return the error of a bad document, with its row and line in the file, of which a range
        may have been read; with a transform the row is the record's."""
        row = bad.row if bad.record is None else bad.record
        (line, byte_offset), problem = bad.place, bad.problem
        if self._within is not None:
            row += self._within.before.rows
            line = None if line is None else line + self._within.before.lines
        unit = "row" if line is None else "line"
        where = f"{path}, row {row:,}"
        where += "" if line is None else f", line {line:,}"
        where += "" if byte_offset is None else f", byte {byte_offset:,}"
        remedy = f"raise documents.max_rejects, for {self._config.max_rejects:,} bad documents "
        remedy += "are set aside already"
        if self._config.on_bad_document == "error":
            remedy = f"set documents.on_bad_document: reject to set such {unit}s aside"
        return BadDocumentError(
            path=path,
            row=row,
            line=line,
            byte_offset=byte_offset,
            where=where,
            expected=problem.expected,
            found=problem.found,
            remedy=f"{problem.remedy or f'fix the {unit}'}, or {remedy}",
        )

    def place(self, batch: Batch, index: int) -> tuple[Path, int]:
        """Return the file of a document that was read, and its row there, or with a transform the
        record that it is of; errors alone ask for it."""
        row = int(batch.rows[index])
        number = bisect_right(self._first_rows, row) - 1
        num_before = 0 if self._within is None else self._within.before.rows
        in_file = row - self._first_rows[number]
        if batch.records is not None:
            in_file = int(batch.records[index])
        return self.paths[number], in_file + num_before

    def open_range(self) -> OpenRange | None:
        """Return the range of the one file that is read, to be read once; None: all of the file."""
        within = self._range
        return None if within is None else open_range(self.paths[0], self._config, within)

    def records_of(self, batch: Batch) -> Iterator[tuple[Path, npt.NDArray[np.int64]]]:
        """Yield each file that a batch has documents of, with the ordinals of their records,
        counted from the beginning of the file, or of the range."""
        first = np.array(self._first_rows)
        numbers = np.searchsorted(first, batch.rows, side="right") - 1
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            rows = batch.rows[chosen] - first[number]
            records = rows // self._config.documents_per_record
            yield self.paths[number], records if batch.records is None else batch.records[chosen]

    @property
    def num_lines(self) -> int:
        """Line ends of a range of one file, once it is read; 0 where there is no such range."""
        return 0 if self._within is None else self._within.num_lines


def _limited(
    limit: Limit, parsed: Iterator[ParsedBatch], encode: Encode | None, first_row: int
) -> Iterator[ParsedBatch]:
    """Yield what was found up to and with the document that reaches the limit.

    Nothing behind it is asked for, and what is bad behind it is not there. `encode` makes the
    tokens that a limit of them counts; without it there is no such limit. A document that cannot be
    encoded raises what `encode` does, if it comes before the limit; `first_row`, of the file, is
    for its errors.
    """
    documents, characters, tokens = limit.documents, limit.characters, limit.tokens
    for found in parsed:
        batch = found.batch
        is_counted = np.ones_like(batch.num_chars) if limit.count_empty else batch.num_chars > 0
        end, documents = _end(is_counted, documents)
        end_of_characters, characters = _end(batch.num_chars, characters)
        end = min(end, end_of_characters)
        if tokens is not None and encode is not None and len(batch.rows):
            batch = replace(batch.slice(0, end), rows=batch.rows[:end] + first_row)
            batch = _with_tokens(batch, tokens, encode)
            batch = replace(batch, rows=batch.rows - first_row)
            end_of_tokens, tokens = _end(batch.tokens.num_tokens, tokens)
            end = min(end, end_of_tokens)
        if end <= len(found.batch.rows):
            batch = batch.slice(0, end)
            last = batch.rows[-1]
            bad = tuple(bad for bad in found.bad if bad.row < last)
            left_out = found.left_out[found.left_out < last]
            yield replace(found, batch=batch, bad=bad, left_out=left_out)
            return
        yield replace(found, batch=batch)


def _end(sizes: npt.NDArray[np.generic], left: int | None) -> tuple[int, int | None]:
    """Return the end of the documents up to a limit, more than there are where they do not reach
    it; and what is left of it."""
    if left is None:
        return len(sizes) + 1, None
    so_far = np.cumsum(sizes, dtype=np.int64)
    end = int(np.searchsorted(so_far, left)) + 1
    return end, left - (int(so_far[-1]) if len(so_far) else 0)


def _with_tokens(batch: Batch, num_tokens: int, encode: Encode) -> Batch:
    """Return the documents with their tokens, or the first of them up to `num_tokens`. Those that
    cannot be encoded together are encoded in halves, for the limit may lie before the bad one."""
    try:
        return encode(batch)
    except TokflowError:
        half = len(batch.rows) // 2
        if half == 0:
            raise
    first = _with_tokens(batch.slice(0, half), num_tokens, encode)
    num_left = num_tokens - int(first.tokens.num_tokens.sum())
    if num_left <= 0:
        return first
    rest = _with_tokens(batch.slice(half, len(batch.rows)), num_left, encode)
    return cast(Batch, joined([first, rest]))


def _cut(batch: Batch, batch_bytes: int) -> Iterator[Batch]:
    """Yield parts of about equal size, the nearest to `batch_bytes`."""
    offsets, _ = text_buffers(batch.texts)
    start = 0
    while start < len(batch.rows):
        left = int(offsets[-1] - offsets[start])
        target = offsets[start] + left / max(1, round(left / batch_bytes))
        end = max(start + 1, int(np.searchsorted(offsets, target, side="right")) - 1)
        yield batch.slice(start, end)
        start = end

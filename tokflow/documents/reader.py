"""What is found in one raw file, in file order, up to a limit and in batches of one size."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokflow.documents.batch import Batch
from tokflow.documents.config import DocumentsConfig, Limit
from tokflow.documents.file_formats import reader_of
from tokflow.documents.parsed import BadDocument, ParsedBatch, Render, ends_of
from tokflow.documents.ranges import OpenRange
from tokflow.errors import BadDocumentError, RawFileError, TokflowError

Encode = Callable[[Batch], Batch]
"""Returns a batch with its tokens."""

BYTES_PER_TOKEN = 4
"""About: so much text is tokenized at once as the tokens are likely to come from that are left."""

MIN_ENCODED_BYTES = 64 * 1024
MAX_ENCODED_BYTES = 8_000_000


def until(
    limit: Limit, parsed: Iterator[ParsedBatch], encode: Encode | None = None
) -> Iterator[ParsedBatch]:
    """Yield what was found up to and with the document that reaches the limit.

    Nothing behind it is asked for, and what is bad behind it is not there. `encode` makes the
    tokens that a limit of them counts, of little more text than it takes; without it there is no
    such limit. A document that cannot be encoded raises what `encode` does, if it comes before the
    limit.
    """
    documents, characters, tokens = limit.documents, limit.characters, limit.tokens
    for found in parsed:
        batch = found.batch
        is_counted = np.ones_like(batch.num_chars) if limit.count_empty else batch.num_chars > 0
        end, documents = _end(is_counted, documents)
        end_of_characters, characters = _end(batch.num_chars, characters)
        end = min(end, end_of_characters)
        if tokens is not None and encode is not None:
            batch = _with_tokens(batch.slice(0, min(end, len(batch.rows))), tokens, encode)
            num_tokens = batch.tokens.num_tokens if batch.tokens else batch.rows
            end_of_tokens, tokens = _end(num_tokens, tokens)
            end = min(end, end_of_tokens)
        if end <= len(found.batch.rows):
            yield _first_of(replace(found, batch=batch), end)
            return
        yield replace(found, batch=batch)


def _end(sizes: npt.NDArray[np.generic], left: int | None) -> tuple[int, int | None]:
    """Return the end of the documents that come up to a limit, more than there are where they do
    not reach it; and what is left of it."""
    if left is None:
        return len(sizes) + 1, None
    so_far = np.cumsum(sizes, dtype=np.int64)
    end = int(np.searchsorted(so_far, left)) + 1
    return end, left - (int(so_far[-1]) if len(so_far) else 0)


def _first_of(found: ParsedBatch, num_documents: int) -> ParsedBatch:
    """Return the first documents, and what is bad or left out before the last of them."""
    batch = found.batch.slice(0, num_documents)
    last = batch.rows[-1]
    bad = tuple(bad for bad in found.bad if bad.row < last)
    return replace(found, batch=batch, bad=bad, left_out=found.left_out[found.left_out < last])


def _with_tokens(batch: Batch, num_tokens: int, encode: Encode) -> Batch:
    """Return the documents with their tokens, as far as they have been encoded when there are so
    many tokens."""
    ends, encoded = ends_of(batch.texts), list[Batch]()
    start = start_byte = 0
    while start < len(ends) and num_tokens > 0:
        num_bytes = min(max(num_tokens * BYTES_PER_TOKEN, MIN_ENCODED_BYTES), MAX_ENCODED_BYTES)
        end = int(np.searchsorted(ends, start_byte + num_bytes, side="right"))
        end = max(start + 1, end)
        for piece in _encoded(batch.slice(start, end), num_tokens, encode):
            encoded.append(piece)
            num_tokens -= int(piece.tokens.num_tokens.sum())
        start, start_byte = end, int(ends[end - 1])
    return Batch.joined(encoded) if encoded else batch


def _encoded(batch: Batch, num_tokens: int, encode: Encode) -> Iterator[Batch]:
    """Yield a batch with its tokens; where it cannot be encoded, in halves, of which the second is
    left out if the first has so many tokens."""
    try:
        yield encode(batch)
    except TokflowError:
        middle = len(batch.rows) // 2
        if middle == 0:
            raise
        for half in (batch.slice(0, middle), batch.slice(middle, len(batch.rows))):
            for piece in _encoded(half, num_tokens, encode):
                yield piece
                num_tokens -= int(piece.tokens.num_tokens.sum())
            if num_tokens <= 0:
                return


_MIN_READ_BYTES = 64 * 1024
"""Read at once, however small the batches are."""

BATCH_BYTES = 2_000_000
"""Text of a batch, unless another size is asked for."""


def is_accepted(config: DocumentsConfig, *, num_rejects: int) -> bool:
    """Return whether a raw file with so many bad documents is one that may be taken."""
    return num_rejects <= (0 if config.on_bad_document == "error" else config.max_rejects)


def read_numbered(
    path: Path,
    config: DocumentsConfig,
    batch_bytes: int,
    make: Render | None,
    within: OpenRange | None,
) -> Iterator[ParsedBatch]:
    """Yield what is in a raw file, rows and records counted from its beginning, about
    `batch_bytes` at once; `make` makes documents of what the reader finds.

    Raises: ConfigError, RawFileError.
    """
    read = reader_of(path, config).read
    try:
        path.open("rb").close()
    except OSError as error:
        raise RawFileError(
            where=path,
            expected="a file that can be read",
            found=f"{error.strerror}",
            remedy="correct the path or the permissions",
        ) from error
    found: Iterator[ParsedBatch] = read(path, config, max(batch_bytes, _MIN_READ_BYTES), within)
    rows = records = 0
    for some in found if make is None else map(make, found):
        numbered = some.moved(rows, records)
        rows, records = rows + some.num_rows, records + some.num_records
        del some  # which keeps the lines
        yield numbered


def bad_document_error(
    bad: BadDocument, path: Path, config: DocumentsConfig, within: OpenRange | None
) -> BadDocumentError:
    """Return the error of a bad document, with its row and line in the file, of which a range may
    have been read; with a transform the row is the record's."""
    row = bad.row if bad.record is None else bad.record
    (line, byte_offset), problem = bad.place, bad.problem
    if within is not None:
        row += within.before.rows
        line = None if line is None else line + within.before.lines
    unit = "row" if line is None else "line"
    where = f"{path}, row {row:,}"
    where += "" if line is None else f", line {line:,}"
    where += "" if byte_offset is None else f", byte {byte_offset:,}"
    remedy = f"{problem.remedy or f'fix the {unit}'}, or "
    if config.on_bad_document == "error":
        remedy += f"set documents.on_bad_document: reject to set such {unit}s aside"
    else:
        remedy += (
            f"raise documents.max_rejects, for {config.max_rejects:,} bad documents are set "
            "aside already"
        )
    return BadDocumentError(
        path=path,
        row=row,
        line=line,
        byte_offset=byte_offset,
        where=where,
        expected=problem.expected,
        found=problem.found,
        remedy=remedy,
    )


def regulated(batches: Iterator[Batch], batch_bytes: int) -> Iterator[Batch]:
    """Yield the documents in batches of about `batch_bytes`: small ones joined, large ones cut."""
    waiting: list[Batch] = []
    num_bytes = 0
    for batch in batches:
        waiting.append(batch)
        num_bytes += batch.texts.nbytes  # offsets included, for all texts may be empty
        if num_bytes >= batch_bytes * 3 // 4:
            yield from _cut(Batch.joined(waiting), batch_bytes)
            waiting, num_bytes = [], 0
    if waiting:
        yield from _cut(Batch.joined(waiting), batch_bytes)


def _cut(batch: Batch, batch_bytes: int) -> Iterator[Batch]:
    """Yield parts of about equal size, the nearest to `batch_bytes`."""
    ends = ends_of(batch.texts)
    start, start_byte = 0, 0
    while start < len(ends):
        left = int(ends[-1]) - start_byte
        target = left / max(1, round(left / batch_bytes))
        end = max(start + 1, int(np.searchsorted(ends, start_byte + target, side="right")))
        yield batch.slice(start, end)
        start, start_byte = end, int(ends[end - 1])

"""Documents of one raw file in batches, in file order, with their text unaltered."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokflow.documents.batch import Batch, Reject
from tokflow.documents.config import DocumentsConfig, Limit
from tokflow.documents.file_formats import reader_of
from tokflow.documents.file_range import OpenRange
from tokflow.documents.parsed import BadDocument, ParsedBatch, Render, ends_of
from tokflow.documents.transform import transform_of
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
            num_tokens -= _num_tokens(piece)
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
                num_tokens -= _num_tokens(piece)
            if num_tokens <= 0:
                return


def _num_tokens(batch: Batch) -> int:
    return 0 if batch.tokens is None else int(batch.tokens.num_tokens.sum())


_MIN_READ_BYTES = 64 * 1024
"""Read at once, however small the batches are."""

BATCH_BYTES = 2_000_000
"""Text of a batch, unless another size is asked for."""


@dataclass(slots=True)
class Tally:
    """Counts of what was read of a raw file so far."""

    num_rows: int = 0
    """Documents, bad ones, and records that a transform left out."""
    num_rejects: int = 0
    """Bad documents, those of the files before it too."""
    num_left_out: int = 0
    """Records of which a transform made no document."""
    num_records: int = 0
    """Records, where a transform may make several documents of one; else as `num_rows`."""
    is_uncut: bool = False
    """True if the separator of documents occurs nowhere in the file."""


def read_documents(
    path: Path,
    config: DocumentsConfig,
    *,
    batch_bytes: int = BATCH_BYTES,
    on_reject: Callable[[Reject], None] | None = None,
    render: Render | None = None,
    within: OpenRange | None = None,
) -> Iterator[Batch]:
    """Return the documents of a raw file in batches of about `batch_bytes` of text.

    No batch is empty; a document larger than a batch is a batch of its own. Which documents
    there are, and their rows, depends on the file and the config alone. Each is either in a batch
    or given to `on_reject`, in file order. `render`, from `tokflow.tokenizers.chat`, makes texts of
    messages. The path and the format are checked at once, the rest with the first batch. A limit of
    tokens, which takes a tokenizer, does not hold here.

    Memory holds a few batches, or the largest document four times over, whatever the size of
    the file; of a parquet file two pages as well, and of an Arrow file a record batch.

    With `within`, one of `ranges_of`, there are the documents of that range alone. Their rows, and
    rows and lines of rejects, are counted from its first record. Errors name row and line of the
    file, for which the text before the range is read. `max_rejects` is of the range.

    Raises:
        ConfigError: the file has no such column, or its format is not known.
        RawFileError: the file is missing, damaged or cut short.
        BadDocumentError: a record is no document, or too many are not.
    """
    documents = accepted_documents(
        path,
        config,
        Tally(),
        batch_bytes=batch_bytes,
        on_reject=on_reject,
        render=render,
        within=within,
    )
    return regulated(documents, batch_bytes)


def accepted_documents(
    path: Path,
    config: DocumentsConfig,
    tally: Tally,
    *,
    batch_bytes: int,
    on_reject: Callable[[Reject], None] | None = None,
    render: Render | None = None,
    within: OpenRange | None = None,
    encode: Encode | None = None,
) -> Iterator[Batch]:
    """Return the documents of a raw file as `read_documents` does, in batches of any size.

    What is read is added to `tally`. With `encode` a limit of tokens holds, too.
    """
    reader = reader_of(path, config)
    _require_readable(path)
    if config.messages is not None and render is None:
        raise TypeError("messages are no text: give `render`, of tokflow.tokenizers.chat.renderer")
    found = reader(path, config, max(batch_bytes, _MIN_READ_BYTES), within)
    make = render or transform_of(config)
    if make is not None:
        found = map(make, found)
    parsed = until(config.limit, _numbered(found), encode)
    return _accepted(parsed, path, config, on_reject, within, tally)


def is_accepted(config: DocumentsConfig, *, num_rejects: int) -> bool:
    """Return whether a raw file with so many bad documents is one that may be taken."""
    return num_rejects <= (0 if config.on_bad_document == "error" else config.max_rejects)


def _require_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise RawFileError(
            where=path,
            expected="a file that can be read",
            found=f"{error.strerror}",
            remedy="correct the path or the permissions",
        ) from error


def _numbered(parsed: Iterator[ParsedBatch]) -> Iterator[ParsedBatch]:
    """Yield what was found with rows and records counted from the beginning of the file."""
    rows = records = 0
    for found in parsed:
        numbered = found.moved(rows, records)
        rows, records = rows + found.num_rows, records + found.num_records
        del found  # which keeps the lines
        yield numbered


def _accepted(
    parsed: Iterator[ParsedBatch],
    path: Path,
    config: DocumentsConfig,
    on_reject: Callable[[Reject], None] | None,
    within: OpenRange | None,
    tally: Tally,
) -> Iterator[Batch]:
    """Yield the batches without the empty ones; the bad documents are errors or rejects."""
    for found in parsed:
        tally.num_rows += found.num_rows
        tally.num_left_out += len(found.left_out)
        tally.num_records += found.num_records
        tally.is_uncut |= found.is_uncut
        for bad in found.bad:
            tally.num_rejects += 1
            if not is_accepted(config, num_rejects=tally.num_rejects):
                raise _bad_document_error(_in_file(bad, within), path, config)
            if on_reject is not None:
                on_reject(_reject(bad))
        if len(found.batch.rows):
            yield found.batch


def _in_file(bad: BadDocument, within: OpenRange | None) -> BadDocument:
    """Return the bad document, which may be of a range, with its row and line in the file; with a
    transform the row is the record's, as in the file itself."""
    row = bad.row if bad.record is None else bad.record
    if within is None:
        return bad._replace(row=row)
    (line, byte_offset), before = bad.place, within.before
    line = None if line is None else line + before.lines
    return bad._replace(row=row + before.rows, place=(line, byte_offset))


def _reject(bad: BadDocument) -> Reject:
    line, byte_offset = bad.place
    reason = f"expected {bad.problem.expected}, found {bad.problem.found}"
    row, record = bad.row, bad.record
    return Reject(row=row, line=line, byte_offset=byte_offset, reason=reason, record=record)


def _bad_document_error(bad: BadDocument, path: Path, config: DocumentsConfig) -> BadDocumentError:
    (line, byte_offset), problem = bad.place, bad.problem
    unit = "row" if line is None else "line"
    where = f"{path}, row {bad.row:,}"
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
        row=bad.row,
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

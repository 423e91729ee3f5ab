"""Documents of a partition: those of its raw file, or of all files of a group in their order."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokflow.documents.batch import Batch, Reject
from tokflow.documents.config import DocumentsConfig
from tokflow.documents.parsed import Render
from tokflow.documents.ranges import OpenRange, Range, open_range
from tokflow.documents.reader import (
    BATCH_BYTES,
    Encode,
    bad_document_error,
    is_accepted,
    read_numbered,
    regulated,
    until,
)
from tokflow.documents.transform import Transform
from tokflow.raw.remote_file import RemoteFile

_FILES_AHEAD = 8
"""Files of a group, each of which may be small, that are fetched while one is read."""

OnReject = Callable[[Path, Reject], None]


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
        self._within = self.open_range()
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
        """Return the documents in batches of about `batch_bytes` of text, which may be of several
        files.

        No batch is empty; a document larger than a batch is a batch of its own. Which documents
        there are, and their rows, depends on the files and the config alone. Each is either in a
        batch or given to `on_reject`, in order: with its file, and with its row there or, of a
        range of it, in the range; `max_rejects` is of all files together, and limits are of each.
        `render`, from `tokflow.tokenizers.chat_renderer`, makes texts of messages. With `encode` a
        limit of tokens holds, too, and batches have the tokens that it made.

        Memory holds a few batches, or the largest document four times over, whatever the size of
        a file; of a parquet file two pages as well, and of an Arrow file a record batch.

        Errors name row and line of the file, for which the text before a range is read.

        Raises:
            ConfigError: a file has no such column, or its format is not known.
            RawFileError: a file is missing, damaged or cut short.
            BadDocumentError: a record is no document, or too many are not.
        """
        if self._config.messages is not None and render is None:
            raise TypeError("messages are no text: give `render`, of `open_renderer`")
        return regulated(self._accepted(batch_bytes, on_reject, render, encode), batch_bytes)

    def _accepted(
        self,
        batch_bytes: int,
        on_reject: OnReject | None,
        render: Render | None,
        encode: Encode | None,
    ) -> Iterator[Batch]:
        """Yield the documents in batches of any size; the bad ones are errors or rejects."""
        config, within = self._config, self._within
        make = render or (Transform(config) if config.transform is not None else None)
        first = num_rejects = 0
        for number, path in enumerate(self.paths):
            first_ahead = 0 if number == 0 else number + _FILES_AHEAD
            for later in self.paths[first_ahead : number + _FILES_AHEAD + 1]:
                if isinstance(later, RemoteFile):  # fetched while this one is read
                    later.read_ahead()
            self._first_rows.append(first)
            num_rows = 0
            parsed = read_numbered(path, config, batch_bytes, make, within)
            if config.limit.ends_early:
                parsed = until(config.limit, parsed, encode and _further(encode, first))
            for found in parsed:
                num_rows += found.num_rows
                self.num_left_out += len(found.left_out)
                self.num_records += found.num_records
                self.num_uncut_files += found.is_uncut
                for bad in found.bad:
                    num_rejects += 1
                    if not is_accepted(config, num_rejects=num_rejects):
                        raise bad_document_error(bad, path, config, within)
                    if on_reject is not None:
                        on_reject(path, bad.as_reject())
                if len(found.batch.rows):
                    yield found.batch.moved(first)
            self.num_rows.append(num_rows)
            first += num_rows

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
        """Yield of each file that a batch has documents of the ordinals of their records, counted
        from its beginning, or from that of the range."""
        first = np.array(self._first_rows)
        numbers = np.searchsorted(first, batch.rows, side="right") - 1
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            rows = batch.rows[chosen] - first[number]
            records = rows // self._config.documents_per_record
            yield self.paths[number], records if batch.records is None else batch.records[chosen]

    @property
    def num_lines(self) -> int:
        """Line ends of a range of one file, read so far; 0 where there is no such range."""
        return 0 if self._within is None else self._within.num_lines


def _further(encode: Encode, rows: int) -> Encode:
    """Return the function for a file that has so many rows before it, by which errors call
    documents."""
    return lambda batch: encode(batch.moved(rows)).moved(-rows)

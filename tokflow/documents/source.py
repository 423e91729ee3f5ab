"""Documents of a partition: those of its raw file, or of all files of a group in their order."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokflow.documents.batch import Batch, Reject
from tokflow.documents.config import DocumentsConfig
from tokflow.documents.file_range import OpenRange, Range
from tokflow.documents.parsed import Render
from tokflow.documents.ranges import open_range
from tokflow.documents.reader import BATCH_BYTES, Encode, Tally, accepted_documents, regulated
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
        """Records that a transform left out of those files."""
        self.num_records = 0
        """Records of those files; without a transform, as many as rows."""
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
        """Return the documents in batches, which may be of several files; see `read_documents`.

        With `encode` a limit of tokens holds, too, and batches have the tokens that it made.

        `on_reject` hears of each bad document with its file, and with its row there or, of a range
        of it, in the range; `max_rejects` is of all files together, and limits are of each.

        Raises: as `read_documents`.
        """
        accepted = self._accepted(batch_bytes, on_reject, render, encode)
        return regulated(accepted, batch_bytes)

    def _accepted(
        self,
        batch_bytes: int,
        on_reject: OnReject | None,
        render: Render | None,
        encode: Encode | None,
    ) -> Iterator[Batch]:
        first = num_rejects = 0
        for number, path in enumerate(self.paths):
            self._read_ahead(number)
            self._first_rows.append(first)
            tally = Tally(num_rejects=num_rejects)
            heard = None if on_reject is None else _naming(path, on_reject)
            for batch in accepted_documents(
                path,
                self._config,
                tally,
                batch_bytes=batch_bytes,
                on_reject=heard,
                render=render,
                within=self._within,
                encode=encode and _further(encode, first),
            ):
                yield _moved(batch, first)
            self.num_rows.append(tally.num_rows)
            self.num_left_out += tally.num_left_out
            self.num_records += tally.num_records
            self.num_uncut_files += tally.is_uncut
            first, num_rejects = first + tally.num_rows, tally.num_rejects

    def _read_ahead(self, number: int) -> None:
        """Let small files be fetched that follow and are elsewhere, while this one is read."""
        first = 0 if number == 0 else number + _FILES_AHEAD
        for path in self.paths[first : number + _FILES_AHEAD + 1]:
            if isinstance(path, RemoteFile):
                path.read_ahead()

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


def _moved(batch: Batch, rows: int) -> Batch:
    return replace(batch, rows=batch.rows + rows) if rows else batch


def _further(encode: Encode, rows: int) -> Encode:
    """Return the function for a file that has so many rows before it, by which errors call
    documents."""
    return lambda batch: _moved(encode(_moved(batch, rows)), -rows)


def _naming(path: Path, on_reject: OnReject) -> Callable[[Reject], None]:
    return lambda reject: on_reject(path, reject)

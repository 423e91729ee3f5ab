"""Rows of a part in files of a given size, for the formats with one record per sequence."""

import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from tokflow.errors import CorruptOutputError
from tokflow.exports.columns import make_columns
from tokflow.exports.format import Counts, counts_of_rows
from tokflow.exports.names import FILE_DIGITS, check_num_files, in_order_of_number
from tokflow.exports.part import Part
from tokflow.exports.shards import rows_within
from tokflow.sequences.segments import Sequences
from tokflow.store.manifest import Manifest

TOKENS_PER_GROUP = 4_000_000
"""At most, in one record batch or row group: it is made in memory, at 13 or 14 bytes each."""


class FileSize(Protocol):
    """How much goes into a file, as the options of many formats say it."""

    @property
    def megabytes_per_file(self) -> int:
        """Counted as 4 bytes per token."""

    @property
    def sequences_per_file(self) -> int | None:
        """Given instead of it."""


def rows_per_file(
    options: FileSize, part: Part, *, where: str, row_bytes: int | None = None
) -> int:
    """Return how many rows a file holds at most: one at least.

    Raises: ConfigError where that makes more files than names can number.
    """
    row_bytes = row_bytes or 4 * part.sequence_length
    rows = options.sequences_per_file or rows_within(
        options.megabytes_per_file * 1_000_000, row_bytes
    )
    option = "sequences_per_file" if options.sequences_per_file else "megabytes_per_file"
    num_files = -(-part.num_sequences // rows)
    check_num_files(num_files, digits=FILE_DIGITS, where=where, option=option)
    return rows


def file_names(part: Part, per_file: int, suffix: str, *, stem: str | None = None) -> list[str]:
    """Return `<stem>-<i>-of-<n><suffix>` for each file; none where the part has no row.

    `stem` is by default the part's name.
    """
    stem = stem or part.name
    num_files = -(-part.num_sequences // per_file)
    return [f"{stem}-{number:05d}-of-{num_files:05d}{suffix}" for number in range(num_files)]


def named_files(manifest: Manifest, stem: str, suffix: str) -> list[str]:
    """Return the files that are called as in `file_names`, in order."""
    pattern = rf"{re.escape(stem)}-(\d+)-of-\d+{re.escape(suffix)}"  # of train, and not train-b
    return in_order_of_number(manifest, pattern)


@contextmanager
def damage_named(path: Path, *, expected: str) -> Iterator[None]:
    """Let what is wrong with a file's content be an error that names the file.

    Raises: CorruptOutputError.
    """
    try:
        yield
    except (msgspec.MsgspecError, tarfile.TarError, zlib.error, ValueError, KeyError) as error:
        raise CorruptOutputError(
            where=path,
            expected=expected,
            found=f"{type(error).__name__}: {error}",
            remedy="delete the export and run `tokflow run` again",
        ) from error


def write_tables(
    part: Part,
    schema: pa.Schema,
    open_writer: Callable[[int], Any],
    *,
    per_file: int,
    at_once: int,
    padding: bool = True,
) -> Counts:
    """Write the rows of a part as tables of `at_once` rows, and return what was written.

    `open_writer` opens the file of an ordinal and returns what has `write_table` and closes it.
    """

    def write_file(number: int, groups: Iterator[Sequences]) -> None:
        with open_writer(number) as writer:
            for rows in groups:
                writer.write_table(make_columns(rows, schema, padding=padding))

    return write_files(part, write_file, columns=schema.names, per_file=per_file, at_once=at_once)


def write_files(
    part: Part,
    write_file: Callable[[int, Iterator[Sequences]], None],
    *,
    columns: Iterable[str],
    per_file: int,
    at_once: int | None = None,
) -> Counts:
    """Write the rows of a part, and return what was written.

    `write_file` takes the ordinal of a file and all of its rows, `at_once` at a time; by default
    as many as Part.sequences yields.
    """
    num_tokens = num_loss_tokens = 0

    def counted(groups: Iterator[Sequences]) -> Iterator[Sequences]:
        nonlocal num_tokens, num_loss_tokens
        for rows in groups:
            num_tokens += int(np.count_nonzero(rows.segment_ids))
            num_loss_tokens += int(np.count_nonzero(rows.loss_mask))
            yield rows

    for number, groups in files_of(part.sequences(at_once), per_file):
        write_file(number, counted(groups))
    return counts_of_rows(
        part,
        num_sequences=part.num_sequences,
        num_tokens=num_tokens,
        num_loss_tokens=num_loss_tokens if {"labels", "loss_mask"} & {*columns} else None,
    )


def files_of(
    batches: Iterable[Sequences], per_file: int
) -> Iterator[tuple[int, Iterator[Sequences]]]:
    """Yield the ordinal of each file and the rows that go into it, `per_file` in all.

    The rows of one file must be taken before the next file is. What is written at once depends
    on the batches alone: a batch is cut only where a file ends.
    """
    for number, pieces in groupby(_cut(batches, per_file), key=itemgetter(0)):
        yield number, (rows for _, rows in pieces)


def _cut(batches: Iterable[Sequences], per_file: int) -> Iterator[tuple[int, Sequences]]:
    num_rows = 0
    for batch in batches:
        rest = batch
        while len(rest):
            number, num_in_file = divmod(num_rows, per_file)
            room = per_file - num_in_file
            some, rest = rest[:room], rest[room:]
            num_rows += len(some)
            yield number, some

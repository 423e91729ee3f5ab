"""Files of a part's sequences: how many go into each, their names, and tables of columns."""

import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from tokflow.exports.batching import cut, equal_sizes
from tokflow.exports.columns import make_columns
from tokflow.exports.names import FILE_DIGITS, check_num_files
from tokflow.exports.part import Part
from tokflow.exports.reading import Export, damaged_file
from tokflow.sequences.segments import Sequences
from tokflow.store.config import Config, Count

TOKENS_PER_BATCH = 4_000_000
"""At most, in one record batch or row group: it is made in memory, at 13 or 14 bytes each."""


class FileSizeOptions(Config):
    """The size of a file, as the options of many formats say it."""

    megabytes_per_file: Count = 500
    """Size of a shard, counted as 4 bytes per token: of arrow the file has 13 or 14 uncompressed,
    of jsonl the text of input_ids some 6; of parquet it is several times smaller."""
    sequences_per_file: Count | None = None
    """Sequences per shard; given instead of `megabytes_per_file`."""


def sequences_within(limit: int, size: int) -> int:
    """Return how many sequences of this size fit into `limit`; one at least."""
    return max(1, limit // size)


def sequences_per_file(
    options: FileSizeOptions, part: Part, *, where: str, sequence_bytes: int | None = None
) -> int:
    """Return how many sequences a file holds at most: one at least.

    Raises: ConfigError where that makes more files than names can number.
    """
    limit, size = options.megabytes_per_file * 1_000_000, sequence_bytes or 4 * part.sequence_length
    per_file = options.sequences_per_file or sequences_within(limit, size)
    option = "sequences_per_file" if options.sequences_per_file else "megabytes_per_file"
    num_files = -(-part.num_sequences // per_file)
    check_num_files(num_files, digits=FILE_DIGITS, where=where, option=option)
    return per_file


def names_of_n(part: Part, per_file: int, suffix: str, *, stem: str | None = None) -> list[str]:
    """Return `<stem>-<i>-of-<n><suffix>` for each file; `stem` is by default the part's name."""
    num_files = -(-part.num_sequences // per_file)
    return [f"{stem or part.name}-{i:05d}-of-{num_files:05d}{suffix}" for i in range(num_files)]


def paths_of_n(export: Export, stem: str, suffix: str) -> list[Path]:
    """Return the files that are called as in `names_of_n`, in order."""
    pattern = re.compile(rf"{re.escape(stem)}-(\d+)-of-\d+{re.escape(suffix)}")
    found = [match for name in export.manifest.files if (match := pattern.fullmatch(name))]
    return [export.folder / match[0] for match in sorted(found, key=lambda match: int(match[1]))]


def write_tables(
    part: Part,
    schema: pa.Schema,
    open_writer: Callable[[Path], AbstractContextManager[Any]],
    paths: Iterable[Path],
    *,
    per_file: int,
    at_once: int,
    padding: bool = True,
) -> None:
    """Write the sequences of a part as tables of `at_once`, so that the bytes do not depend on what
    was read together. `open_writer` returns what has `write_table` and closes its file."""
    files = files_of(part, per_file, at_once=at_once)
    for path, (_, batches) in zip(paths, files, strict=False):
        path.parent.mkdir(exist_ok=True)
        with open_writer(path) as writer:
            for batch in batches:
                writer.write_table(make_columns(batch, schema, padding=padding))


def files_of(
    part: Part, per_file: int, *, at_once: int | None = None
) -> Iterator[tuple[int, Iterator[Sequences]]]:
    """Yield the ordinal of each file and the sequences that go into it, `per_file` in all.

    Those of one file must be taken before the next file is. What is written at once depends
    on `at_once` alone: a batch is cut only where a file ends.
    """
    return enumerate(cut(part.sequences(at_once), equal_sizes(part.num_sequences, per_file)))


@contextmanager
def damage_named(path: Path, *, expected: str) -> Iterator[None]:
    """Let what is wrong with a file's content be an error that names the file.

    Raises: CorruptOutputError.
    """
    try:
        yield
    except (msgspec.MsgspecError, tarfile.TarError, zlib.error, ValueError, KeyError) as error:
        found = f"{type(error).__name__}: {error}"
        raise damaged_file(path, expected=expected, found=found) from error

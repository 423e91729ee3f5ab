"""Files of a part's sequences: how many go into each, and their names."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from tokflow.exports.batching import cut, equal_sizes
from tokflow.exports.options import FILE_DIGITS, check_num_files
from tokflow.exports.part import Part
from tokflow.exports.reading import Export
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


def files_by_size(
    part: Part,
    options: FileSizeOptions,
    stem: Path,
    suffix: str,
    *,
    at_once: int,
    sequence_bytes: int | None = None,
    has_total: bool = True,
) -> Iterator[tuple[Path, Iterator[Sequences]]]:
    """Yield `<stem>-<i>-of-<n><suffix>` for each file, and the sequences that go into it as
    `files_of` yields them; without `has_total` it is called `<stem>-<i><suffix>`.

    `sequence_bytes`: what `megabytes_per_file` counts for a sequence, by default 4 per token.

    Raises: ConfigError before the first of more files than names can number.
    """
    per_file = sequences_per_file(part.sequence_length, options, sequence_bytes)
    option = "sequences_per_file" if options.sequences_per_file else "megabytes_per_file"
    num_files = -(-part.num_sequences // per_file)
    check_num_files(num_files, digits=FILE_DIGITS, option=option)
    total = f"-of-{num_files:05d}" if has_total else ""
    stem.parent.mkdir(exist_ok=True)
    for number, batches in files_of(part, per_file, at_once=at_once):
        yield stem.with_name(f"{stem.name}-{number:05d}{total}{suffix}"), batches


def sequences_per_file(
    sequence_length: int, options: FileSizeOptions, sequence_bytes: int | None = None
) -> int:
    """Return how many sequences `files_by_size` puts into each file of a part but the last."""
    size = sequence_bytes or 4 * sequence_length
    within = sequences_within(options.megabytes_per_file * 1_000_000, size)
    return options.sequences_per_file or within


def paths_by_size(export: Export, stem: str, suffix: str) -> list[Path]:
    """Return the files that are called as in `files_by_size`, in order."""
    pattern = re.compile(rf"{re.escape(stem)}-(\d+)(-of-\d+)?{re.escape(suffix)}")
    found = [match for name in export.manifest.files if (match := pattern.fullmatch(name))]
    return [export.folder / match[0] for match in sorted(found, key=lambda match: int(match[1]))]


def batches_in_files(
    paths: Iterable[Path], total: int, *, per_file: int, at_once: int
) -> Iterator[tuple[Path, int, int]]:
    """Yield the file of each batch that `files_of` yields, its number there, and its sequences.

    Of 8 sequences in the files a and b, 5 a file and 3 at once: (a, 0, 3), (a, 1, 2), (b, 0, 1),
    (b, 1, 2).
    """
    for path, first in zip(paths, range(0, total, per_file), strict=True):
        stop = min(first + per_file, total)
        edges = [first, *range(first - first % at_once + at_once, stop, at_once), stop]
        for number, (start, end) in enumerate(pairwise(edges)):
            yield path, number, end - start


def files_of(
    part: Part, per_file: int, *, at_once: int | None = None
) -> Iterator[tuple[int, Iterator[Sequences]]]:
    """Yield the ordinal of each file and the sequences that go into it, `per_file` in all.

    Those of one file must be taken before the next file is. What is written at once depends
    on `at_once` alone: a batch is cut only where a file ends. Only the files of the sequences
    `part.within`, if that is given.
    """
    within = range(part.num_sequences) if part.within is None else part.within
    files = cut(part.sequences(at_once), equal_sizes(len(within), per_file))
    return enumerate(files, within.start // per_file)

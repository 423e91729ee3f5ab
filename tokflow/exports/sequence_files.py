"""Files of a part's sequences: how many go into each, and their names."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from tokflow.exports.batching import cut
from tokflow.exports.options import ShardOptions
from tokflow.exports.part import Part
from tokflow.exports.reading import Export
from tokflow.sequences.segments import Sequences

TOKENS_PER_BATCH = 4_000_000
"""At most, in one record batch or row group: it is made in memory, at 13 or 14 bytes each."""


def sequences_within(limit: int, size: int) -> int:
    """Return how many sequences of this size fit into `limit`; one at least."""
    return max(1, limit // size)


def numbered_files(
    part: Part,
    sizes: Sequence[int],
    options: ShardOptions,
    stem: Path,
    suffix: str,
    *,
    at_once: int,
    has_total: bool = True,
) -> Iterator[tuple[Path, Iterator[Sequences]]]:
    """Yield `<stem>-<i>-of-<n><suffix>` for each file, and the sequences that go into it as
    `files_of` yields them; without `has_total` it is called `<stem>-<i><suffix>`.

    Raises: ConfigError before the first of more files than names can number.
    """
    options.check_num_files(len(sizes))
    total = f"-of-{len(sizes):05d}" if has_total else ""
    stem.parent.mkdir(exist_ok=True)
    for number, batches in files_of(part, sizes, at_once=at_once):
        yield stem.with_name(f"{stem.name}-{number:05d}{total}{suffix}"), batches


def numbered_names(export: Export, stem: str, suffix: str) -> list[str]:
    """Return the files that are called as in `numbered_files`, in order."""
    pattern = re.compile(rf"{re.escape(stem)}-(\d+)(-of-\d+)?{re.escape(suffix)}")
    found = [match for name in export.manifest.files if (match := pattern.fullmatch(name))]
    return [match[0] for match in sorted(found, key=lambda match: int(match[1]))]


def files_of(
    part: Part, sizes: Sequence[int], *, at_once: int | None = None
) -> Iterator[tuple[int, Iterator[Sequences]]]:
    """Yield the ordinal of each file and the sequences that go into it, as many as `sizes` says.

    Those of one file must be taken before the next file is. What is written at once depends
    on `at_once` alone: a batch is cut only where a file ends. Only the files of the sequences
    `part.within`, if that is given.
    """
    within = range(part.num_sequences) if part.within is None else part.within
    firsts = [0, *accumulate(sizes)]
    own = slice(bisect_left(firsts, within.start), bisect_left(firsts, within.stop))
    return enumerate(cut(part.sequences(at_once), sizes[own]), own.start)

"""Segments of an export: files of one part, or its index, made alone, joined at last.

    exports/<name>/.<fingerprint[:16]>.segments/00003/   one segment, until all are there
    exports/<name>/<fingerprint[:16]>/                   the export, with the files of all segments

Only of formats whose files do not depend on each other: `Format.sizes`.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path

from tokflow.exports.config import ExportConfig, export_named
from tokflow.exports.formats import FORMATS
from tokflow.exports.part import Part, inputs_of
from tokflow.store.manifest import FileEntry, Recipe, checksum
from tokflow.store.store import Stored, StoredOutput

SEGMENT_TOKENS = 2**25
"""Of sequences that one task writes, padding included, and at least one file: a second of work of
the fastest format, in proportion to the 10 ms of one output more."""


@dataclass(frozen=True, slots=True)
class ExportSegment:
    """A share of an export that is made alone, and kept beside it until all are there."""

    number: int
    export: Recipe
    """The recipe of the export."""
    part: str | None = None
    """The part whose files it has; None: it is the index."""
    within: range = range(0)
    """The sequences of the part that are in its files."""

    @property
    def recipe(self) -> Recipe:
        """The recipe of the segment: its share, of the export as a whole, whose own parents are as
        many as there are files."""
        own = {"segment": [self.number, self.part, self.within.start, self.within.stop]}
        return replace(
            self.export,
            config={**self.export.config, **own},
            parents={"whole": self.export.fingerprint},
        )


def fetching(parts: Sequence[Part], segment: ExportSegment | None) -> AbstractContextManager[None]:
    """Let come, where it is at a URL, what the block makes an export from, or a segment of it; of
    sequences made of tails it comes when it is read."""
    inputs: Sequence[Stored] = inputs_of(parts)
    store, has_numbers = inputs[0].store, segment is None or segment.part is not None
    for part in parts:
        if segment is not None and part.name == segment.part:
            inputs = part.packed.inputs_within(segment.within)
    return store.fetching(inputs, has_numbers=has_numbers)


def segments_of_export(
    parts: Sequence[Part], config: ExportConfig, recipe: Recipe
) -> list[ExportSegment]:
    """Return the segments that an export is made of; none where it is made as a whole.

    They depend on the sequences and the config alone.

    Raises: as `integrity.Reading`, of the tables that tell how many sequences there are.
    """
    if sum(part.num_tokens for part in parts) <= SEGMENT_TOKENS:
        return []
    inputs = inputs_of(parts)
    with inputs[0].store.fetching(inputs, has_numbers=False):
        return _cut(parts, config, recipe)


def _cut(parts: Sequence[Part], config: ExportConfig, recipe: Recipe) -> list[ExportSegment]:
    sizes_of = FORMATS[config.format].sizes
    shares: list[tuple[str, range]] = []
    for part in parts:
        with export_named(config):
            sizes = sizes_of(part.rows, config.options)
        if sizes is None:
            return []
        largest = max(sizes, default=1) * part.sequence_length
        edges = [0, *accumulate(sizes)]
        edges = [*edges[: -1 : max(1, SEGMENT_TOKENS // largest)], edges[-1]]
        shares += [(part.name, range(*share)) for share in pairwise(edges)]
    if len(shares) < 2:
        return []
    found = [ExportSegment(number, recipe, *share) for number, share in enumerate(shares)]
    return [*found, ExportSegment(len(found), recipe)]


def join_files(
    segments: Sequence[StoredOutput], config: ExportConfig, folder: Path
) -> dict[str, FileEntry]:
    """Put the files of all segments into `folder`; return their sizes and checksums. None is
    copied where the file system has hard links.

    Raises: CorruptOutputError where one is damaged.
    """
    having: dict[str, list[StoredOutput]] = {}
    for segment in segments:
        for name in segment.manifest.files:
            having.setdefault(name, []).append(segment)
    entries = {}
    for name, those in having.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if len(those) == 1:
            entries[name] = those[0].manifest.files[name]
            those[0].link(name, path)
        else:
            found = [of.file(name).read_bytes() for of in those]
            path.write_bytes(FORMATS[config.format].merge(found))
            entries[name] = checksum(path)
    return entries


def taken_counts(segments: Sequence[StoredOutput], part: str) -> Counter[str]:
    """Return what all segments have taken of a part, as `Part.taken` counts it."""
    taken: Counter[str] = Counter()
    for segment in segments:
        for name, num in segment.manifest.counts.items():
            if name.startswith(f"{part}."):
                taken[name.removeprefix(f"{part}.")] += num
    return taken

"""Segments of the token shard of a large raw file: one of each range, made alone, joined at last.

    tokens/<key>/.<fingerprint[:16]>.segments/00003/   one segment, until all are there
    tokens/<key>/<fingerprint[:16]>/                   the shard, with the files of all segments:
        tokens-00003.bin, documents-00003.parquet, of chats loss_mask-00003.bin

They are as those of a shard without segments, but rows, characters and tokens count from the
beginning of the segment.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokflow.documents import DocumentsConfig, is_accepted, ranges
from tokflow.documents.ranges import Range
from tokflow.errors import BadDocumentError
from tokflow.raw import RawFile
from tokflow.store.integrity import check_files
from tokflow.store.manifest import (
    FileEntry,
    Manifest,
    Recipe,
    broken_file,
    checksum,
    is_output_name,
    read_run,
    write_manifest,
)
from tokflow.store.stored_outputs import StoredOutput
from tokflow.tokens.writer import REJECTS_NAME, segment_name

WHOLE_RANGES = 4
"""A file that holds no more text than so many ranges is read whole."""

SEGMENTS_SUFFIX = ".segments"

KEPT = ("num_documents", "num_chars", "num_tokens")
"""Counts of each segment that a reader of the shard needs."""


@dataclass(frozen=True, slots=True)
class ShardSegment:
    """A share of a token shard that is made alone, and kept beside it until all are there."""

    number: int
    """From 0, in the order of the file."""
    range: Range
    shard: Recipe
    """The recipe of the shard."""

    @property
    def recipe(self) -> Recipe:
        """The recipe of the segment: that of the shard, and its range."""
        own = {"segment": [self.number, self.range.start, self.range.stop]}
        return replace(self.shard, config={**self.shard.config, **own})

    def folder(self, shard: Path) -> Path:
        """Return where it is kept until the shard in that folder is made."""
        return segments_folder(shard) / f"{self.number:05d}"


def may_have_segments(raw: RawFile, documents: DocumentsConfig) -> bool:
    """Return whether the token shard of a file of that name and size may have segments."""
    least = WHOLE_RANGES * ranges.RANGE_BYTES
    return ranges.is_cut(raw.path, raw.num_bytes, documents, range_bytes=least)


def segments_of(raw: RawFile, documents: DocumentsConfig, shard: Recipe) -> list[ShardSegment]:
    """Return the segments that a token shard is made of; none where it is made as a whole."""
    if not may_have_segments(raw, documents):
        return []
    found = ranges.ranges_of(raw.path, documents, range_bytes=ranges.RANGE_BYTES)
    return [ShardSegment(number, each, shard) for number, each in enumerate(found)]


def segments_folder(shard: Path) -> Path:
    """Return the folder of the segments of a shard that is not finished."""
    return shard.parent / f".{shard.name}{SEGMENTS_SUFFIX}"


def is_segments_folder(path: Path) -> bool:
    """Return whether a folder has the name of one of segments, which no partition key has."""
    name = path.name.removeprefix(".").removesuffix(SEGMENTS_SUFFIX)
    return path.name == f".{name}{SEGMENTS_SUFFIX}" and is_output_name(name)


def join_segments(
    segments: Sequence[StoredOutput],
    folder: Path,
    *,
    raw: RawFile,
    documents: DocumentsConfig,
    recipe: Recipe,
) -> None:
    """Make the shard of its segments in the empty `folder`, manifest last; no token is copied
    where the file system has hard links.

    Raises: BadDocumentError where they have set aside more documents together than
    `documents.max_rejects`; CorruptOutputError where a file of them is damaged.
    """
    check_files(*segments)
    counts: Counter[str] = Counter()
    for segment in segments:
        counts.update(segment.manifest.counts)
    files = {}
    rejects = _rejects(segments, raw, documents)
    if rejects:
        (folder / REJECTS_NAME).write_bytes(rejects)
        files[REJECTS_NAME] = checksum(folder / REJECTS_NAME)
    for number, segment in enumerate(segments):
        for name, entry in segment.manifest.files.items():
            if name != segment_name(REJECTS_NAME, number):
                _link(segment.folder / name, folder / name, entry)
                files[name] = entry
    first = segments[0].manifest
    manifest = Manifest(
        recipe=recipe,
        dataset=first.dataset,
        partition=raw.key,
        counts=dict(counts),
        details={**first.details, "segments": [_kept(of.manifest.counts) for of in segments]},
        files=files,
    )
    write_manifest(folder, manifest, run=_run([of.folder for of in segments], counts))


def _kept(counts: Mapping[str, int]) -> dict[str, int]:
    num_rows = counts["num_documents"] + counts["num_rejects"]
    return {"num_rows": num_rows, **{name: counts[name] for name in KEPT}}


def _rejects(segments: Sequence[StoredOutput], raw: RawFile, documents: DocumentsConfig) -> bytes:
    """Return the lines of all rejects; refuse too many, as reading the whole file would have."""
    lines: list[bytes] = []
    for number, segment in enumerate(segments):
        path = segment.folder / segment_name(REJECTS_NAME, number)
        if path.name in segment.manifest.files:
            lines += path.read_bytes().splitlines(keepends=True)
        if not is_accepted(documents, num_rejects=len(lines)):
            raise BadDocumentError(
                where=raw.path,
                expected=f"no more than {documents.max_rejects:,} bad documents",
                found=f"{len(lines):,} in the first {number + 1:,} ranges",
                remedy="mend the file, or raise documents.max_rejects",
                path=raw.path,
                row=json.loads(lines[-1])["row"],
            )
    return b"".join(lines)


def _link(path: Path, new: Path, entry: FileEntry) -> None:
    try:
        os.link(path, new)
    except OSError:  # the file system has no hard links
        shutil.copyfile(path, new)
        if problem := broken_file(new.parent, new.name, entry):
            raise problem from None


def _run(folders: Sequence[Path], counts: Counter[str]) -> dict[str, object]:
    """Return how long the segments took together, as if one core had made them."""
    runs = [read_run(folder) for folder in folders]
    seconds = sum(run.get("seconds", 0) for run in runs) or 0.001
    return {
        "seconds": round(seconds, 3),
        "engine": ", ".join(sorted({run.get("engine", "unknown") for run in runs})),
        "engine_reason": runs[0].get("engine_reason", "unknown"),
        "tokens_per_second": round(counts["num_tokens"] / seconds),
        "megabytes_per_second": round(counts["num_bytes"] / 1e6 / seconds, 2),
    }

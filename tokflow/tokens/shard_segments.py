"""Segments of the token shard of much text: one of each range, made alone, joined at last.

    tokens/<key>/.<fingerprint[:16]>.segments/00003/   one segment, until all are there
    tokens/<key>/<fingerprint[:16]>/                   the shard, with the files of all segments:
        tokens-00003.bin, documents-00003.parquet, of chats loss_mask-00003.bin

They are as those of a shard without segments, but rows, characters and tokens count from the
beginning of the segment; so do, until they are joined, the rows and the lines of rejects.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokflow.documents import DocumentsConfig, Reject, is_accepted, ranges
from tokflow.documents.ranges import Range, gathered
from tokflow.errors import BadDocumentError
from tokflow.raw import RawPartition
from tokflow.store.manifest import (
    Manifest,
    Recipe,
    checksum,
    write_manifest,
)
from tokflow.store.store import StoredOutput
from tokflow.tokens.origins import raw_paths
from tokflow.tokens.writer import (
    REASONS,
    REJECTS_NAME,
    reject_line,
    rejects_by_reason,
    segment_name,
)

WHOLE_RANGES = 4
"""Ranges of text up to which a file is read whole."""

KEPT = ("num_documents", "num_chars", "num_tokens", "num_records")
"""Counts of each segment that a reader of the shard needs; num_records with a transform."""

NUM_LINES = "num_lines"
"""Key in a segment's details: its number of lines, added to the lines of later rejects."""


@dataclass(frozen=True, slots=True)
class ShardSegment:
    """A share of a token shard that is made alone, and kept beside it until all are there."""

    number: int
    """Position among the segments of the file, from 0."""
    range: Range
    shard: Recipe
    """The recipe of the shard."""

    @property
    def recipe(self) -> Recipe:
        """The recipe of the segment: that of the shard, and its range."""
        own = {"range": [self.number, self.range.start, self.range.stop]}
        return replace(self.shard, config={**self.shard.config, **own})


def is_large(path: Path, num_bytes: int, documents: DocumentsConfig) -> bool:
    """Return whether a raw file of this name and size is read by several workers."""
    least = WHOLE_RANGES * ranges.RANGE_BYTES
    return ranges.is_cut(path, num_bytes, documents, range_bytes=least)


def may_have_segments(raw: RawPartition, documents: DocumentsConfig) -> bool:
    """Return whether the token shard of files of these names and sizes may have segments."""
    if len(raw.files) == 1:
        return is_large(*next(iter(raw.sizes.items())), documents)
    return sum(_text_bytes(raw, documents)) > WHOLE_RANGES * ranges.RANGE_BYTES


def segments_of(raw: RawPartition, documents: DocumentsConfig, shard: Recipe) -> list[ShardSegment]:
    """Return the segments that a token shard is made of; none where it is made as a whole."""
    if not may_have_segments(raw, documents):
        return []
    if len(raw.files) == 1:
        found = ranges.ranges_of(raw.paths[0], documents, range_bytes=ranges.RANGE_BYTES)
    else:  # of files
        found = gathered(_text_bytes(raw, documents), ranges.RANGE_BYTES)
    return [ShardSegment(number, each, shard) for number, each in enumerate(found)]


def _text_bytes(raw: RawPartition, documents: DocumentsConfig) -> list[int]:
    return [ranges.text_bytes_of(*size, documents) for size in raw.sizes.items()]


def join_segments(
    segments: Sequence[StoredOutput],
    folder: Path,
    *,
    raw: RawPartition,
    documents: DocumentsConfig,
    recipe: Recipe,
) -> None:
    """Make the shard of its segments in the empty `folder`, manifest last; no token is copied
    where the file system has hard links.

    Raises: BadDocumentError where they have set aside more documents together than
    `documents.max_rejects`; CorruptOutputError where a file of them is damaged.
    """
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
                segment.link(name, folder / name)
                files[name] = entry
    manifest = Manifest(
        recipe=recipe,
        dataset=segments[0].manifest.dataset,
        partition=raw.key,
        counts=dict(counts),
        details=_details(segments),
        files=files,
    )
    runs = [segment.run() for segment in segments]
    seconds = sum(run.get("seconds", 0) for run in runs) or 0.001  # as if one core had made them
    engines = ", ".join(sorted({run.get("engine", "unknown") for run in runs}))
    reason = runs[0].get("engine_reason", "unknown")
    facts = run_facts(engines, reason, counts, seconds)
    write_manifest(folder, manifest, run=facts | raw_paths(raw))


def _details(segments: Sequence[StoredOutput]) -> dict[str, Any]:
    """Return the counts of each segment and, for a group, all raw files without repetition."""
    each = [segment.manifest.details for segment in segments]
    details = {**each[0], "segments": [_kept(segment) for segment in segments]}
    details |= rejects_by_reason(of.get(REASONS, {}) for of in each)
    if "files" in details:
        files: dict[str, dict[str, Any]] = {}
        for file in (file for of in each for file in of["files"]):
            known = files.setdefault(file["raw_file"], {**file, "num_rows": 0})
            known["num_rows"] += file["num_rows"]
        details["files"] = list(files.values())
        for kept in details["segments"] if len(files) > 1 else ():
            kept.pop("num_records", None)  # records count from the beginning of their file
    del details[NUM_LINES]
    return details


def _kept(segment: StoredOutput) -> dict[str, int]:
    counts = segment.manifest.counts
    num_rows = counts["num_documents"] + counts["num_rejects"] + counts.get("num_left_out", 0)
    return {"num_rows": num_rows, **{name: counts[name] for name in KEPT if name in counts}}


def _rejects(
    segments: Sequence[StoredOutput], raw: RawPartition, documents: DocumentsConfig
) -> bytes:
    """Return the lines of all rejects; refuse too many, as reading the whole file would have."""
    rejects: list[Reject] = []
    num_rows = num_lines = num_records = 0
    for number, segment in enumerate(segments):
        name = segment_name(REJECTS_NAME, number)
        if name in segment.manifest.files:
            lines = segment.file(name).read_bytes().splitlines()
            found = [Reject(**json.loads(line)) for line in lines]
            of_file = (0, 0, 0) if len(raw.files) > 1 else (num_rows, num_lines, num_records)
            rejects += [each.moved(*of_file) for each in found]
        if not is_accepted(documents, num_rejects=len(rejects)):
            raise BadDocumentError(
                where=raw.key if len(raw.files) > 1 else raw.paths[0],
                expected=f"no more than {documents.max_rejects:,} bad documents",
                found=f"{len(rejects):,} in the first {number + 1:,} ranges",
                remedy="fix the file, or raise documents.max_rejects",
                path=raw.paths[0],
                row=rejects[-1].row,
            )
        num_rows += _kept(segment)["num_rows"]
        num_records += _kept(segment).get("num_records", 0)
        num_lines += segment.manifest.details[NUM_LINES]
    return b"".join(map(reject_line, rejects))


def run_facts(
    engine: str, reason: str, counts: Mapping[str, int], seconds: float
) -> dict[str, object]:
    """Return the engine and the speed of a run, for its record."""
    return {
        "seconds": round(seconds, 3),
        "engine": engine,
        "engine_reason": reason,
        "tokens_per_second": round(counts["num_tokens"] / seconds),
        "megabytes_per_second": round(counts["num_bytes"] / 1e6 / seconds, 2),
    }

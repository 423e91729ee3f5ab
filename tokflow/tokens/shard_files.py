"""The files of a token shard: written while they are hashed and counted; rejects by reason; and
the segments of the shard of much text, one per range, made alone and joined at last.

    tokens/<key>/.<fingerprint[:16]>.segments/00003/   one segment, until all are there
    tokens/<key>/<fingerprint[:16]>/                   the shard, with the files of all segments:
        tokens-00003.bin, documents-00003.parquet, of chats loss_mask-00003.bin

Rows, characters and tokens count from the beginning of the segment; so do, until segments are
joined, the rows and the lines of rejects.
"""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from tokflow.documents import Batch, DocumentsConfig, DocumentSource, Reject, is_accepted, ranges
from tokflow.documents.kept_columns import KeptColumns
from tokflow.errors import BadDocumentError
from tokflow.raw import RawPartition
from tokflow.store.manifest import FileEntry, Manifest, Recipe, checksum, write_manifest
from tokflow.store.store import StoredOutput
from tokflow.store.streams import HashedWriter
from tokflow.store.tables import TableWriter, make_table, offsets_of, one_array, text_buffers
from tokflow.tokenizers.chat.renderer import CHAT_COUNTS, ROLES
from tokflow.tokens.loss_mask import TokenBatch

DOCUMENTS_SCHEMA = pa.schema(
    pa.field(name, pa.binary(16) if name == "text_hash" else pa.int64(), nullable=False)
    for name in (
        *("row", "char_offset", "num_chars", "num_bytes"),
        *("token_offset", "num_tokens", "text_hash"),
    )
)
"""One row per document. row: ordinal in the raw file (rejects leave a gap); char_offset: code
points before it in the file's accepted documents; num_bytes: of the UTF-8 text; token_offset:
tokens before it in tokens.bin; num_tokens: with BOS and EOS; text_hash: xxh3-128 of the UTF-8 text,
big-endian."""

RECORDS_SCHEMA = DOCUMENTS_SCHEMA.append(pa.field("record", pa.int64(), nullable=False))
"""Columns for documents that a transform made. record: ordinal in the raw file of the record
behind a document; row: ordinal among all that was made, one for a record left out or bad."""


def text_hashes(texts: pa.LargeStringArray) -> pa.FixedSizeBinaryArray:
    """Return the xxh3-128 of the UTF-8 of each text, big-endian."""
    offsets, data = text_buffers(texts)
    view = data.data
    hashes = b"".join(
        xxhash.xxh3_128_digest(view[start:stop]) for start, stop in pairwise(offsets.tolist())
    )
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(texts), [None, pa.py_buffer(hashes)]
    )


def hashes_as_array(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.void]:
    """Return text hashes as an array of 16 bytes each, which shares their memory where they are one
    chunk."""
    hashes = one_array(column)
    array = np.frombuffer(hashes.buffers()[1] or b"", dtype="V16")
    return array[hashes.offset : hashes.offset + len(hashes)]


TOKENS_NAME = "tokens.bin"
LOSS_MASK_NAME = "loss_mask.bin"
DOCUMENTS_NAME = "documents.parquet"
KEPT_NAME = "kept_columns.parquet"
REJECTS_NAME = "rejects.jsonl"
FILE_NAMES = (TOKENS_NAME, LOSS_MASK_NAME, DOCUMENTS_NAME, KEPT_NAME, REJECTS_NAME)


def segment_name(name: str, segment: int | None) -> str:
    """Return the name of a file in a segment, such as `tokens-00003.bin`; without one, `name`."""
    if segment is None:
        return name
    stem, suffix = name.split(".")
    return f"{stem}-{segment:05d}.{suffix}"


class ShardWriter:
    """The open files of a token shard, or of one segment of it, with counts of what went in."""

    def __init__(
        self,
        opened: ExitStack,
        folder: Path,
        source: DocumentSource,
        documents: DocumentsConfig,
        eos_id: int | None,
        segment: int | None,
    ) -> None:
        """Open the files, until `opened` is closed."""
        self._eos_id = eos_id
        self._path = {name: folder / segment_name(name, segment) for name in FILE_NAMES}
        self._schema = DOCUMENTS_SCHEMA if documents.transform is None else RECORDS_SCHEMA
        self.kept = None
        if documents.keep_columns:
            self.kept = KeptColumns(source, documents)
        names = [TOKENS_NAME, *([LOSS_MASK_NAME] if documents.is_chat else [])]
        self._files = {name: opened.enter_context(HashedWriter(self._path[name])) for name in names}
        schemas = {DOCUMENTS_NAME: self._schema}
        schemas |= {} if self.kept is None else {KEPT_NAME: self.kept.schema}
        self._tables = {}
        for name, schema in schemas.items():
            table = TableWriter(self._path[name], schema)
            self._tables[name] = opened.enter_context(table)
        names = ["documents", "empty_documents", "chars", "bytes", "tokens"]
        self._of_chats = CHAT_COUNTS if documents.is_rendered else ()
        roles = ROLES if documents.is_rendered else ()
        self._of_tokens = ["boundary_tokens", *(f"{role}_tokens" for role in roles)]
        if documents.is_chat:
            names += ["loss_tokens", "documents_without_loss", *self._of_tokens, *self._of_chats]
        self.counts = {f"num_{name}": 0 for name in names}
        self.num_eos = 0
        """Ids that are EOS, also of texts."""
        self.num_without_tokens = 0
        """Documents that have no token, not even an EOS."""
        self.texts = xxhash.xxh3_128()
        """Of the hashes of all texts, end to end."""

    def add(self, batch: Batch, tokens: TokenBatch) -> None:
        """Write the documents of a batch and their tokens."""
        self._files[TOKENS_NAME].write(tokens.token_ids)
        if tokens.loss_mask is not None:
            self._files[LOSS_MASK_NAME].write(tokens.loss_mask)
        counts, num_chars, num_tokens = self.counts, batch.num_chars, tokens.num_tokens
        hashes = text_hashes(batch.texts)
        self.texts.update(hashes.buffers()[1])
        columns = {
            "row": batch.rows,
            "char_offset": counts["num_chars"] + np.cumsum(num_chars) - num_chars,
            "num_chars": num_chars,
            "num_bytes": np.diff(text_buffers(batch.texts)[0]),
            "token_offset": counts["num_tokens"] + np.cumsum(num_tokens) - num_tokens,
            "num_tokens": num_tokens,
            "text_hash": hashes,
        }
        if batch.records is not None:
            columns["record"] = batch.records
        self._tables[DOCUMENTS_NAME].add(make_table(columns, self._schema))
        if self.kept is not None:
            self._tables[KEPT_NAME].add(self.kept.of(batch))
        counts["num_documents"] += len(batch.rows)
        counts["num_empty_documents"] += int(np.count_nonzero(num_chars == 0))
        counts["num_chars"] += int(num_chars.sum())
        counts["num_bytes"] += bytes_of(batch)
        counts["num_tokens"] += len(tokens.token_ids)
        if self._eos_id is not None:
            self.num_eos += int(np.count_nonzero(tokens.token_ids == self._eos_id))
        self.num_without_tokens += int(np.count_nonzero(num_tokens == 0))
        if tokens.loss_mask is not None:
            supervised = np.append(0, np.cumsum(tokens.loss_mask, dtype=np.int64))
            of_documents = np.diff(supervised[offsets_of(num_tokens)])
            counts["num_loss_tokens"] += int(supervised[-1])
            counts["num_documents_without_loss"] += int(np.count_nonzero(of_documents == 0))
        of_chats = (self._of_tokens, tokens.chat_counts), (self._of_chats, batch.chat_counts)
        for names, nums in of_chats:
            if nums is not None:
                for name, num in zip(names, nums.sum(axis=0).tolist(), strict=True):
                    counts[f"num_{name}"] += num

    def entries(self, rejects: Sequence[Reject]) -> dict[str, FileEntry]:
        """Write rejects.jsonl if there are any; return size and sha256 of all files, now closed.

        Raises: ConfigError for a column to keep that the raw file turns out not to have.
        """
        if self.kept is not None:
            self.kept.check()
        files: Mapping[str, HashedWriter | TableWriter] = {**self._files, **self._tables}
        entries = {self._path[name].name: file.entry() for name, file in files.items()}
        if rejects:
            path = self._path[REJECTS_NAME]
            path.write_bytes(b"".join(map(reject_line, rejects)))
            entries[path.name] = checksum(path)
        return entries


def bytes_of(batch: Batch) -> int:
    """Return the size of the texts of a batch in bytes of UTF-8."""
    offsets, _ = text_buffers(batch.texts)
    return int(offsets[-1] - offsets[0])


WHOLE_RANGES = 4
"""Ranges of text up to which a file is read whole."""

KEPT = ("num_documents", "num_chars", "num_tokens", "num_records")
"""Counts of each segment that a reader of the shard needs; num_records with a transform."""

TEXT_DIGEST = "text_digest"
"""Key in the details: the xxh3-128 of the text hashes of all documents, end to end; with segments
of their digests. Two tokenizers give the same texts one digest."""

NUM_LINES = "num_lines"
"""Key in a segment's details: its number of lines, added to the lines of later rejects."""


@dataclass(frozen=True, slots=True)
class ShardSegment:
    """A share of a token shard that is made alone, and kept beside it until all are there."""

    number: int
    """Position among the segments of the file, from 0."""
    range: ranges.Range
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
    return sum(text_bytes(raw, documents)) > WHOLE_RANGES * ranges.RANGE_BYTES


def text_bytes(raw: RawPartition, documents: DocumentsConfig) -> list[int]:
    """Return about how much text each raw file of a partition holds."""
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
    files, kept = {}, [_kept(segment.manifest.counts) for segment in segments]
    if rejects := _rejects(segments, kept, raw, documents):
        (folder / REJECTS_NAME).write_bytes(rejects)
        files[REJECTS_NAME] = checksum(folder / REJECTS_NAME)
    for number, segment in enumerate(segments):
        counts.update(segment.manifest.counts)
        for name, entry in segment.manifest.files.items():
            if name != segment_name(REJECTS_NAME, number):
                segment.link(name, folder / name)
                files[name] = entry
    manifest = Manifest(
        recipe=replace(recipe, parents={**recipe.parents, "raw": raw.sha256}),
        dataset=segments[0].manifest.dataset,
        partition=raw.key,
        counts=dict(counts),
        details=_details([segment.manifest.details for segment in segments], kept),
        files=files,
    )
    runs = [segment.run() for segment in segments]
    seconds = sum(run.get("seconds", 0) for run in runs) or 0.001  # as if one core had made them
    engines = ", ".join(sorted({run.get("engine", "unknown") for run in runs}))
    reason = runs[0].get("engine_reason", "unknown")
    write_manifest(folder, manifest, run=run_facts(raw, engines, reason, counts, seconds))


def _details(each: Sequence[Mapping[str, Any]], kept: list[dict[str, int]]) -> dict[str, Any]:
    """Return the counts of each segment and, for a group, all raw files without repetition."""
    digests = "".join(of[TEXT_DIGEST] for of in each)
    digest = xxhash.xxh3_128_hexdigest(bytes.fromhex(digests))
    details = {**each[0], "segments": kept, TEXT_DIGEST: digest}
    details |= rejects_by_reason(of.get(REASONS, {}) for of in each)
    if "files" in details:
        files: dict[str, dict[str, Any]] = {}
        for file in (file for of in each for file in of["files"]):
            known = files.setdefault(file["raw_file"], {**file, "num_rows": 0})
            known["num_rows"] += file["num_rows"]
        details["files"] = list(files.values())
        for of in kept if len(files) > 1 else ():
            of.pop("num_records", None)  # records count from the beginning of their file
    del details[NUM_LINES]
    return details


def _kept(counts: Mapping[str, int]) -> dict[str, int]:
    num_rows = counts["num_documents"] + counts["num_rejects"] + counts.get("num_left_out", 0)
    return {"num_rows": num_rows, **{name: counts[name] for name in KEPT if name in counts}}


def _rejects(
    segments: Sequence[StoredOutput],
    kept: Sequence[Mapping[str, int]],
    raw: RawPartition,
    documents: DocumentsConfig,
) -> bytes:
    """Return the lines of all rejects; refuse too many, as reading the whole file would have."""
    rejects: list[Reject] = []
    num_rows = num_lines = num_records = 0
    for number, (segment, counts) in enumerate(zip(segments, kept, strict=True)):
        name = segment_name(REJECTS_NAME, number)
        if name in segment.manifest.files:
            lines = segment.file(name).read_bytes().splitlines()
            of_file = (0, 0, 0) if len(raw.files) > 1 else (num_rows, num_lines, num_records)
            rejects += [Reject(**json.loads(line)).moved(*of_file) for line in lines]
        if not is_accepted(documents, num_rejects=len(rejects)):
            raise BadDocumentError(
                where=raw.key if len(raw.files) > 1 else raw.paths[0],
                expected=f"no more than {documents.max_rejects:,} bad documents",
                found=f"{len(rejects):,} in the first {number + 1:,} ranges",
                remedy="fix the file, or raise documents.max_rejects",
                path=raw.paths[0],
                row=rejects[-1].row,
            )
        num_rows += counts["num_rows"]
        num_records += counts.get("num_records", 0)
        num_lines += segment.manifest.details[NUM_LINES]
    return b"".join(map(reject_line, rejects))


def run_facts(
    raw: RawPartition, engine: str, reason: str, counts: Mapping[str, int], seconds: float
) -> dict[str, object]:
    """Return the engine, the speed and the raw files of a run, for its record."""
    return {
        "seconds": round(seconds, 3),
        "engine": engine,
        "engine_reason": reason,
        "tokens_per_second": round(counts["num_tokens"] / seconds),
        "megabytes_per_second": round(counts["num_bytes"] / 1e6 / seconds, 2),
        # A remote file is fetched while it is read, and has no path.
        "raw_paths": [None if of.remote else str(of.path.absolute()) for of in raw.files],
    }


def rejects_in(lines: bytes, raw_file: str) -> list[dict[str, Any]]:
    """Return the fields of the rejects in rejects.jsonl; `raw_file`: that of those that name none,
    for there is one."""
    return [{"raw_file": raw_file, **json.loads(line)} for line in lines.splitlines()]


REASONS = "rejects"
"""The name of the reasons in the details of a manifest: numbers by reason."""

MAX_REASONS = 20

OTHERS = "other reasons"
"""Name for all reasons past the `MAX_REASONS` most frequent ones."""

_VALUES = re.compile(r"""b?'(?:[^'\\]|\\.)*'|b?"(?:[^"\\]|\\.)*"|\d[\d,.]*""")
"""Quoted values and numbers, which differ between two rejects of one reason."""


def reject_line(reject: Reject) -> bytes:
    """Return the line of a reject in rejects.jsonl, with its raw file if there is a group, and its
    record if there is a transform."""
    left_out = {name for name in ("raw_file", "record") if getattr(reject, name) is None}
    fields = {name: of for name, of in dataclasses.asdict(reject).items() if name not in left_out}
    return json.dumps(fields).encode() + b"\n"


def rejects_by_reason(counts: Iterable[Mapping[str, int]]) -> dict[str, Any]:
    """Return numbers by reason, added up, as the details of a manifest: the most frequent first,
    and one number for all rare ones; none where nothing was rejected."""
    counted = Counter[str]()
    for each in counts:
        counted.update(each)
    num_others = counted.pop(OTHERS, 0)
    ordered = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    num_others += sum(num for _, num in ordered[MAX_REASONS:])
    reasons = dict(ordered[:MAX_REASONS]) | ({OTHERS: num_others} if num_others else {})
    return {REASONS: reasons} if reasons else {}


def reason_of(text: str) -> str:
    """Return the part of a reject's text that all rejects of one reason share: of `expected a
    string in 'text', found the number 5` the words `a string in 'text', found the number …`."""
    expected, comma, found = text.removeprefix("expected ").partition(", found ")
    return f"{expected}{comma}{_VALUES.sub('…', found).partition(' (')[0]}"

"""What an output holds, for people: its manifest in order, and its first sequences decoded."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.audit.stored import Found, find_output
from tokflow.errors import MissingOutputError, UntrustedCodeError
from tokflow.exports import FORMATS, INDEX_NAME, Arrays, Part, layout_of
from tokflow.exports.index import read_runs
from tokflow.exports.part import make_parts
from tokflow.sequences.packing import PackingConfig
from tokflow.store.arrow import to_numpy
from tokflow.store.integrity import check_files
from tokflow.store.manifest import read_intact
from tokflow.tokenizers.engines import ReferenceEngine, open_reference
from tokflow.tokenizers.tokenizer import Tokenizer

STREAM_TOKENS = 128
"""Tokens shown as one stretch where there are no rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A run of tokens of one document, or of padding."""

    document: str | None
    """`<raw file>:<row>`; None where it is not known, and for padding."""
    token_ids: tuple[int, ...]
    text: str | None
    """None where the tokenizer is not in the store or may not run, and for padding."""
    is_padding: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """One sequence, or the first tokens of a stream."""

    name: str
    """`train: sequence 0`, `train: tokens 0 to 128`."""
    segments: tuple[Segment, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """What is to be said of an output."""

    found: Found
    num_bytes: int
    tokenizer: Tokenizer | None
    stretches: tuple[Stretch, ...]
    notes: tuple[str, ...]
    """What cannot be shown, and why."""


def inspect_output(
    path: Path, *, num_sequences: int = 2, trust_remote_code: bool = False
) -> Inspection:
    """Return what the output at `path` holds; of each part, at most `num_sequences` of tokens.

    Texts are decoded by the tokenizer that is in the same store, whose files are compared with
    their checksums; where that is Python code, only with `trust_remote_code`. Of the output itself
    the beginning is read, except for formats that can be read only whole, and no checksum is
    compared: `tokflow verify` does that.

    Raises: MissingOutputError where there is none, CorruptOutputError.
    """
    found = find_output(path)
    read_intact(found.folder)
    tokenizer, notes = _find_tokenizer(found)
    engine = None
    if tokenizer is not None:
        check_files(tokenizer)
        try:
            engine = open_reference(replace(tokenizer, trust_remote_code=trust_remote_code))
        except UntrustedCodeError as error:
            notes.append(f"tokens are shown as ids: {error}")
    stretches: list[Stretch] = []
    try:
        stretches = list(_stretches(found, _Shown(engine), num_sequences))
    except MissingOutputError:
        notes.append("its tokens are elsewhere and cannot be shown")
    manifest = found.manifest
    if manifest.stage == "export" and FORMATS[manifest.details["format"]].read is None:
        notes.append(f"{manifest.details['format']} files are never read: shown is what is in them")
    return Inspection(
        found=found,
        num_bytes=sum(entry.num_bytes for entry in manifest.files.values()),
        tokenizer=tokenizer,
        stretches=tuple(stretches),
        notes=tuple(notes),
    )


def _find_tokenizer(found: Found) -> tuple[Tokenizer | None, list[str]]:
    """Return the tokenizer of an output, if it is in the same store, and else notes on why not."""
    tokenizer, notes = None, []
    try:
        tokenizer = found.tokenizer()
    except MissingOutputError:
        notes.append("what it was made from is not in this store")
    if tokenizer is None and found.manifest.stage != "raw":
        notes.append("its tokenizer is not in this store: tokens are shown as ids")
    return tokenizer, notes


class _Shown:
    """Turns token ids into segments with their text."""

    def __init__(self, engine: ReferenceEngine | None) -> None:
        self._engine = engine

    def segment(self, token_ids: npt.NDArray[Any], document: str | None) -> Segment:
        """Return the segment of one document."""
        ids = tuple(int(token_id) for token_id in token_ids)
        text = None if self._engine is None else self._engine.decode(ids)
        return Segment(document=document, token_ids=ids, text=text)

    def row(
        self,
        name: str,
        token_ids: npt.NDArray[Any],
        segment_ids: npt.NDArray[Any],
        documents: Sequence[str | None],
    ) -> Stretch:
        """Return one row of sequences, its padding as the last segment."""
        segments = []
        for number in range(1, int(segment_ids.max(initial=0)) + 1):
            document = documents[number - 1] if number <= len(documents) else None
            segments.append(self.segment(token_ids[segment_ids == number], document))
        if len(padding := token_ids[segment_ids == 0]):
            ids = tuple(int(token_id) for token_id in padding)
            segments.append(Segment(document=None, token_ids=ids, text=None, is_padding=True))
        return Stretch(name=name, segments=tuple(segments))


def _stretches(found: Found, shown: _Shown, num: int) -> Iterator[Stretch]:
    stage = found.manifest.stage
    if num == 0 or stage in ("tokenizer", "raw"):
        return
    if stage == "tokens":
        shard = found.shard()
        table = shard.documents(["row", "token_offset"])
        yield from _of_stream(
            shown,
            "",
            shard.token_ids()[: num * STREAM_TOKENS],
            starts=to_numpy(table["token_offset"]),
            documents=lambda i: f"{found.manifest.partition}:{table['row'][i].as_py()}",
        )
    elif stage == "split":
        for part in _parts_of_file(found):
            yield from _of_part(shown, part, num)
    elif stage == "sequences":
        for part in _parts_of_file(found):
            yield from _of_rows(shown, part, num)
    else:
        yield from _of_export(found, shown, num)


def _of_export(found: Found, shown: _Shown, num: int) -> Iterator[Stretch]:
    manifest = found.manifest
    made_of = layout_of(manifest).made_of
    read = FORMATS[manifest.details["format"]].read
    if made_of == "texts":
        for part in found.parts():
            yield from _of_part(shown, part, num)
    elif read is None:
        for part in found.parts():
            yield from _of_rows(shown, part, num)
    else:
        show = _of_stream_read if made_of == "stream" else _of_rows_read
        for name in manifest.details["parts"]:
            yield from show(found, shown, name, read(found.folder, manifest, name), num)


def _of_stream_read(
    found: Found, shown: _Shown, name: str, arrays: Iterator[Arrays], num: int
) -> Iterator[Stretch]:
    run = _first((fields["token_ids"] for fields in arrays), num * STREAM_TOKENS)
    index = read_runs(found.folder / INDEX_NAME, name, 0, num * STREAM_TOKENS)
    yield from _of_index(shown, name, run, index)


def _of_rows_read(
    found: Found, shown: _Shown, name: str, arrays: Iterator[Arrays], num: int
) -> Iterator[Stretch]:
    length = found.manifest.details["sequence_length"]
    fields = _first_rows(arrays, num)
    token_ids = fields["token_ids"]
    index = read_runs(found.folder / INDEX_NAME, name, 0, num * length)
    for row in range(len(token_ids)):
        here = [run for run in index if run["position"] // length == row]
        yield shown.row(
            f"{name}: sequence {row:,}",
            token_ids[row],
            _segment_ids(fields, row, here, length),
            [_document(run) for run in here],
        )


def _of_part(shown: _Shown, part: Part, num: int) -> Iterator[Stretch]:
    """Yield the first tokens of a part, read from the store."""
    run = _first(part.stream(), num * STREAM_TOKENS)
    index = [row for table in part.stream_index() for row in table.to_pylist()]
    yield from _of_index(shown, part.name, run, index)


def _segment_ids(
    fields: dict[str, Any], row: int, runs: list[dict[str, Any]], length: int
) -> npt.NDArray[Any]:
    """Return the row's segment ids, from the index where the format does not keep them."""
    if "segment_ids" in fields:
        return np.asarray(fields["segment_ids"][row])
    segment_ids = np.zeros(length, dtype=np.int32)
    for number, run in enumerate(runs, start=1):
        start = run["position"] % length
        segment_ids[start : start + run["num_tokens"]] = number
    return segment_ids


def _of_rows(shown: _Shown, part: Part, num: int) -> Iterator[Stretch]:
    """Yield the first sequences of a part, made from what is in the store."""
    rows = next(part.sequences(num), None)
    if rows is None:
        return
    wanted = len(rows) * part.sequence_length
    runs: list[dict[str, Any]] = []
    for table in part.sequence_index():
        runs += table.slice(0, wanted).to_pylist()
        if runs and runs[-1]["position"] >= wanted:
            break
    for row in range(len(rows)):
        here = [run for run in runs if run["position"] // part.sequence_length == row]
        yield shown.row(
            f"{part.name}: sequence {row:,}",
            rows.token_ids[row],
            rows.segment_ids[row],
            [_document(run) for run in here],
        )


def _of_index(
    shown: _Shown, part: str, token_ids: npt.NDArray[Any], runs: Sequence[dict[str, Any]]
) -> Iterator[Stretch]:
    starts = np.array([run["position"] for run in runs], dtype=np.int64)
    yield from _of_stream(
        shown, part, token_ids, starts=starts, documents=lambda i: _document(runs[i])
    )


def _of_stream(
    shown: _Shown,
    part: str,
    token_ids: npt.NDArray[Any],
    *,
    starts: npt.NDArray[np.int64],
    documents: Any,
) -> Iterator[Stretch]:
    """Yield the tokens in stretches, each cut where a document begins."""
    prefix = f"{part}: " if part else ""
    for start in range(0, len(token_ids), STREAM_TOKENS):
        stop = min(start + STREAM_TOKENS, len(token_ids))
        first = max(0, int(np.searchsorted(starts, start, side="right")) - 1)
        last = int(np.searchsorted(starts, stop))
        segments = []
        for run in range(first, last):
            begin = max(start, int(starts[run]))
            end = min(stop, int(starts[run + 1]) if run + 1 < len(starts) else stop)
            if end > begin:
                segments.append(shown.segment(token_ids[begin:end], documents(run)))
        yield Stretch(name=f"{prefix}tokens {start:,} to {stop:,}", segments=tuple(segments))


def _parts_of_file(found: Found) -> list[Part]:
    """Return the parts of one file's split or sequences as exports see them."""
    is_split = found.manifest.stage == "split"
    sequences = [] if is_split else [found.sequences()]
    split = found.split() if is_split else sequences[0].split
    config = {} if is_split else found.manifest.config
    details = split.shard.manifest.details
    return make_parts(
        split.parts,
        details,
        splits=(split,),
        sequences_of=sequences,
        packing=PackingConfig(**config),
    )


def _first(runs: Iterable[npt.NDArray[Any]], num: int) -> npt.NDArray[Any]:
    """Return the first `num` values of all runs, or rows, or fewer where there are no more."""
    taken: list[npt.NDArray[Any]] = []
    for run in runs:
        taken.append(run[:num])
        num -= len(taken[-1])
        if num <= 0:
            break
    return np.concatenate(taken) if taken else np.zeros(0, dtype=np.int64)


def _first_rows(arrays: Iterable[Arrays], num: int) -> Arrays:
    """Return the first `num` rows of every field."""
    taken: list[Arrays] = []
    for fields in arrays:
        taken.append({name: values[:num] for name, values in fields.items()})
        num -= len(taken[-1]["token_ids"])
        if num <= 0:
            break
    if not taken:
        return {"token_ids": np.zeros((0, 0), dtype=np.int64)}
    return {name: np.concatenate([fields[name] for fields in taken]) for name in taken[0]}


def _document(run: dict[str, Any]) -> str:
    return f"{run['raw_file']}:{run['row']}"

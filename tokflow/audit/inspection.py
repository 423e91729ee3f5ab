"""Inspection of an output, for people: its manifest, and its first sequences decoded."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.audit.ancestry import Ancestry, open_tokenizer
from tokflow.audit.characters import Characters
from tokflow.audit.texts import ExportTexts, Texts, TokenizedText
from tokflow.audit.token_texts import ChatSpan, TokenTexts
from tokflow.errors import MissingOutputError, UntrustedCodeError
from tokflow.exports import Export, Part
from tokflow.exports.columns import ALL_POSITIONS, positions_in_files
from tokflow.exports.index import read_index
from tokflow.exports.options import batches_of
from tokflow.exports.reading import is_export
from tokflow.pipeline.stages import STAGES
from tokflow.stage import stage_of
from tokflow.store.integrity import report_damage_on_error
from tokflow.store.store import StoredOutput
from tokflow.store.stored_outputs import find_output
from tokflow.store.tables import to_numpy
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens.shard import TokenShard, is_shard

STREAM_TOKENS = 128
"""Tokens of one excerpt where there are no sequences."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Neighbouring tokens of one document, or of padding."""

    document: str | None
    """`<raw file>:<row>`; None for padding."""
    token_ids: tuple[int, ...]
    text: str | None
    """None where the tokenizer is not in the store or may not run, and for padding."""
    is_padding: bool = False
    spans: tuple[ChatSpan, ...] = ()
    """Of a chat, where `text` is known: its tokens by whose words they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Excerpt:
    """One sequence, or some tokens of a stream."""

    name: str
    """`train: sequence 0`, `train: tokens 0 to 128`."""
    segments: tuple[Segment, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """An output and the beginning of its tokens."""

    found: StoredOutput
    tokenizer: Tokenizer | None
    excerpts: tuple[Excerpt, ...]
    notes: tuple[str, ...]
    """Reasons why something cannot be shown."""


def inspect_output(
    path: str | Path | StoredOutput, *, num_sequences: int = 2, trust_remote_code: bool = False
) -> Inspection:
    """Return what the output at `path` holds; of each part, at most `num_sequences` of tokens.

    Texts are decoded by the tokenizer that is in the same store, whose files are compared with
    their checksums; where that is Python code, only with `trust_remote_code`. Of the output itself
    the beginning is read, except for formats that can be read only whole, and no checksum is
    compared: `tokflow verify` does that.

    Raises: MissingOutputError where there is none, CorruptOutputError.
    """
    found = path if isinstance(path, StoredOutput) else find_output(path)
    found.store.check(found)
    notes: list[str] = []
    excerpts: list[Excerpt] = []
    texts: TokenTexts | None = None
    chats: _Chats | None = None
    ancestry = Ancestry()
    if (tokenizer := open_tokenizer(found, ancestry)) is not None:
        texts = TokenTexts(replace(tokenizer, trust_remote_code=trust_remote_code))
        try:
            chats = _Chats(found, ancestry, Characters(tokenizer, texts.engine, texts.bytes_by_id))
        except UntrustedCodeError as error:
            texts = None
            notes.append(f"tokens are shown as ids: {error}")
    elif stage_of(STAGES, found.manifest) is not None:  # raw files need none
        notes.append("its tokenizer is not in this store: tokens are shown as ids")
    try:
        with report_damage_on_error(found):
            for beginning in _beginnings(found, num_sequences, ancestry) if num_sequences else ():
                excerpts += beginning.excerpts(texts, chats, num_sequences)
    except MissingOutputError:
        notes.append("its tokens are elsewhere and cannot be shown")
    if is_export(found.manifest) and not (export := Export(found)).is_read:
        said = "files are never read: shown are the tokens they were made from"
        notes.append(f"{export.format_name} {said}")
    return Inspection(
        found=found, tokenizer=tokenizer, excerpts=tuple(excerpts), notes=tuple(notes)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Beginning:
    """The first tokens of a part, or of a token shard, and the documents that they are of."""

    part: str = ""
    sequence_length: int | None = None
    """None of a stream."""
    token_ids: Iterable[npt.NDArray[Any]]
    """Token ids from position 0 on, padding included; arrays of any shape."""
    written: slice | None = field(default_factory=lambda: ALL_POSITIONS)
    """The positions of each sequence that are in the files; None: those of its tokens."""
    entries: list[dict[str, Any]]
    """Rows of an index: position, num_tokens, raw_file, row."""

    def excerpts(
        self, texts: TokenTexts | None, chats: "_Chats | None", num: int
    ) -> Iterator[Excerpt]:
        """Yield at most `num` sequences, or as many excerpts of a stream."""
        length = self.sequence_length or STREAM_TOKENS
        values = (array.reshape(-1) for array in self.token_ids)
        token_ids = next(batches_of(values, num * length, num * length), np.zeros(0, np.int64))
        prefix = f"{self.part}: " if self.part else ""
        for start in range(0, len(token_ids), length):
            stop = min(start + length, len(token_ids))
            name = f"tokens {start:,} to {stop:,}"
            if self.sequence_length is not None:
                name = f"sequence {start // length:,}"
            shown = range(start, stop)[self.written or ALL_POSITIONS]
            segments = (
                _segment(token_ids[begin:end], begin, entry, texts, chats)
                for begin, end, entry in segments_of(self.entries, shown)
                if entry is not None or self.written is not None
            )
            yield Excerpt(name=prefix + name, segments=tuple(segments))


def segments_of(
    entries: Iterable[dict[str, Any]], positions: range
) -> Iterator[tuple[int, int, dict[str, Any] | None]]:
    """Yield where each segment within some positions begins and ends, and its row of the index,
    given those in order; None of padding, which is what no document has."""
    shown = positions.start
    for entry in entries:
        begin = max(shown, entry["position"])
        end = min(positions.stop, entry["position"] + entry["num_tokens"])
        if begin < end:
            if shown < begin:
                yield shown, begin, None
            yield begin, end, entry
            shown = end
    if shown < positions.stop:
        yield shown, positions.stop, None


def _segment(
    token_ids: npt.NDArray[Any],
    begin: int,
    entry: dict[str, Any] | None,
    texts: TokenTexts | None,
    chats: "_Chats | None",
) -> Segment:
    ids = tuple(token_ids.tolist())
    if entry is None:
        return Segment(document=None, token_ids=ids, text=None, is_padding=True)
    document = f"{entry['raw_file']}:{entry['row']}"
    if texts is None:
        return Segment(document=document, token_ids=ids, text=None)
    spans, at = list[ChatSpan](), 0
    for num, span in chats.spans(entry, begin, len(ids)) if chats else ():
        own = ids[at : (at := at + num)]
        spans.append(replace(span, token_ids=own, text=texts.decoded(own)))
    return Segment(document=document, token_ids=ids, text=texts.decoded(ids), spans=tuple(spans))


class _Chats:
    """Finds whose words the tokens of chats are."""

    def __init__(self, found: StoredOutput, ancestry: Ancestry, characters: Characters) -> None:
        self._found, self._ancestry, self._characters = found, ancestry, characters

    @cached_property
    def _text_of(self) -> Callable[[Mapping[str, Any]], TokenizedText] | None:
        """Gives the text that a row of the index is of; None of an output that has no chats."""
        found, ancestry, counts = self._found, self._ancestry, self._found.manifest.counts
        if is_export(found.manifest):
            is_lost = "loss_mask" in found.manifest.details.get("lost", ())
            is_chats = is_lost or any(name.endswith("num_loss_tokens") for name in counts)
            return ExportTexts(found, ancestry).text_of if is_chats else None
        shard = ancestry.shard(found)
        split = None if is_shard(found.manifest) else ancestry.split(found)
        return Texts(shard, split).text_of if shard.has_loss_mask else None

    def spans(
        self, entry: Mapping[str, Any], begin: int, num: int
    ) -> Iterable[tuple[int, ChatSpan]]:
        """Return how many tokens from a position on are of which span, given their row of the
        index; nothing where they are of no chat."""
        if self._text_of is None:
            return ()
        first = entry.get("token_in_piece", 0) + begin - entry["position"]
        text = self._text_of({"part": "", "char_start": 0, **entry})
        return self._characters.spans_of_chat(text, first, first + num)


def _beginnings(found: StoredOutput, num: int, ancestry: Ancestry) -> Iterator[_Beginning]:
    """Yield the beginning of each part of an output."""
    manifest = found.manifest
    export = Export(found) if is_export(manifest) else None
    if is_shard(manifest):
        yield _of_shard(ancestry.shard(found), num * STREAM_TOKENS)
    elif export is not None and export.is_read:
        for part in export.parts:
            length = export.of_part(part).sequence_length
            stop = num * (length or STREAM_TOKENS)
            yield _Beginning(
                part=part,
                sequence_length=length,
                written=positions_in_files(export, part) if length else ALL_POSITIONS,
                token_ids=(of["token_ids"] for of in export.between(part, 0, stop)),
                entries=read_index(found, part, 0, stop),
            )
    elif "parts" in manifest.details:
        yield from (_of_part(part, num) for part in ancestry.parts(found))


def _of_shard(shard: TokenShard, num_tokens: int) -> _Beginning:
    table = shard.documents(["row", "token_offset", "num_tokens"])
    table = table.rename_columns(["row", "position", "num_tokens"])
    entries = _rows_before([table], num_tokens)
    raw_files, rows = shard.origins.of_rows(np.array([of["row"] for of in entries], dtype=np.int64))
    for entry, raw_file, row in zip(entries, raw_files.to_pylist(), rows.tolist(), strict=True):
        entry |= {"raw_file": raw_file, "row": row}
    return _Beginning(token_ids=[shard.tokens(is_lazy=True).read(0, num_tokens)], entries=entries)


def _of_part(part: Part, num: int) -> _Beginning:
    if not part.packed.files:
        entries = _rows_before(part.stream_index(), num * STREAM_TOKENS)
        return _Beginning(part=part.name, token_ids=part.stream(), entries=entries)
    return _Beginning(
        part=part.name,
        sequence_length=part.sequence_length,
        token_ids=(sequences.token_ids for sequences in part.sequences(num)),
        entries=_rows_before(part.packed.index(), num * part.sequence_length),
    )


def _rows_before(tables: Iterable[pa.Table], stop: int) -> list[dict[str, Any]]:
    """Return the rows of tables, ordered by position, of which that is below `stop`."""
    rows: list[dict[str, Any]] = []
    for table in tables:
        num = int(np.searchsorted(to_numpy(table["position"]), stop))
        rows += table.slice(0, num).to_pylist()
        if num < len(table):
            break
    return rows

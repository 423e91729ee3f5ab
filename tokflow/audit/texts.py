"""Texts that were tokenized, found by rows of an index: of a token shard, a split or an export."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.audit.ancestry import Ancestry
from tokflow.errors import MissingOutputError
from tokflow.exports import INDEX_NAME, Export
from tokflow.exports.index import read_index, read_spans
from tokflow.split import SPANS_NAME, PartSpans, Split
from tokflow.store.integrity import check_files
from tokflow.store.store import StoredOutput
from tokflow.store.tables import repeated, to_arrow, to_numpy
from tokflow.tokens import TokenSource
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.shard_files import DOCUMENTS_NAME

OF_SHARD = {"token_start": "token_offset", "num_tokens": "num_tokens"}
"""Columns of the documents of a shard, by what spans of a part call them."""

CutChars: TypeAlias = dict[tuple[int, int], int]
"""Characters of each span of cut documents, by document and first character."""


@dataclass(frozen=True, slots=True)
class ExportedTokens:
    """The tokens of one text, from its first, read out of the files of an export, where those
    of its raw file were dropped."""

    export: StoredOutput
    entry: Mapping[str, Any]
    """A row of its index about the text."""

    def read(self, start: int, stop: int) -> npt.NDArray[np.unsignedinteger]:
        """Return the tokens between two positions in the text.

        Raises: MissingOutputError where the export does not have them one behind the other, but for
        the EOS of the text, which can stand before it.
        """
        export, part, entry = Export(self.export), self.entry["part"], self.entry
        moves_eos = export.layout.eos_first
        is_eos = moves_eos and entry["token_in_piece"] > 0
        first = entry["position"] + 1 if is_eos else entry["position"] - entry["token_in_piece"]
        found: list[tuple[int, int, int]] = []
        for of in read_index(self.export, part, max(0, first - moves_eos), first + stop):
            is_same = all(of[name] == entry[name] for name in ("raw_file", "row", "char_start"))
            at = of["token_in_piece"]
            there = of["position"] - at
            if is_same and (there == first or (moves_eos and of["position"] == first - 1)):
                found.append((max(at, start), min(at + of["num_tokens"], stop), there))
        num_there = sum(max(0, end - begin) for begin, end, _ in found)
        if num_there < stop - start:
            raise MissingOutputError(
                where=self.export.shown,
                expected=f"tokens {start:,} to {stop:,} of {self.entry['raw_file']}, row "
                f"{self.entry['row']:,}, one behind the other",
                found="not all of them: other sequences have them, or none",
                remedy="trace its document alone; the tokens of its raw file were dropped",
            )
        pieces = (
            of["token_ids"]
            for begin, end, there in sorted(found)
            if begin < end
            for of in export.between(part, there + begin, there + end)
        )
        return np.concatenate([*pieces])


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizedText:
    """A text that was tokenized: a document, or a span of one that was cut."""

    source: TokenSource | ExportedTokens
    """All tokens of its split, its own among them; or its own, as an export has them."""
    token_start: int
    num_tokens: int
    """Tokens with the BOS and EOS that were put around it."""
    char_start: int
    """Code points of the document before it."""
    num_chars: int
    may_hold_special: bool
    """True if the text itself can hold EOS or BOS, as chats do."""
    may_have_added: tuple[bool, bool]
    """True if a BOS can have been put before it, and an EOS behind it."""
    record: int | None
    """The record that a transform made the document of."""
    shard: TokenShard
    """The token shard of its document."""
    raw_file: str
    row: int
    """Row of its document in the raw file."""
    text_hash: bytes
    """Hash of the whole document."""
    is_cut: bool
    """True if it is a span of its document, or a budget of tokens ended it early."""

    masks: TokenSource | None
    """The loss mask of the tokens of `source`; None where every token is supervised."""

    @property
    def token_ids(self) -> npt.NDArray[np.unsignedinteger]:
        """All its tokens, (num_tokens,)."""
        return self.between(0, self.num_tokens)

    def between(self, start: int, stop: int) -> npt.NDArray[np.unsignedinteger]:
        """Return some of its tokens, counted from its first."""
        stop = min(stop, self.num_tokens)
        return self.source.read(self.token_start + start, self.token_start + stop)


class Texts:
    """Finds the texts of one split, or of a token shard; each of its tables is read once."""

    def __init__(self, shard: TokenShard, split: Split | None = None) -> None:
        self.shard, self.split = shard, split
        self._of_parts: dict[str, tuple[PartSpans, npt.NDArray[np.int64], CutChars]] = {}

    def entries(
        self, part: str | None, spans: Sequence[tuple[int, int]]
    ) -> list[list[dict[str, Any]]]:
        """Return a row, as an index has it, of each document of a token shard that touches each of
        some spans of positions."""
        shard = self.shard
        check_files(shard, only=set(shard.names(DOCUMENTS_NAME)))
        table = shard.documents(["row", "token_offset", "num_tokens"])
        row, start, num_tokens = (to_numpy(column) for column in table.columns)
        kept = shard.kept_columns() if shard.keep_columns else pa.table({})
        found = []
        for first, stop in spans:
            is_wanted = (start < stop) & (start + num_tokens > first) & (num_tokens > 0)
            documents = np.flatnonzero(is_wanted)
            files, rows = shard.origins.of_rows(row[documents])
            zeros, own = to_arrow(np.zeros_like(rows)), kept.take(to_arrow(documents))
            values = {
                "part": repeated("", len(documents)),
                "position": to_arrow(start[documents]),
                "num_tokens": to_arrow(num_tokens[documents]),
                "raw_file": files,
                "row": to_arrow(rows),
                "char_start": zeros,
                "token_in_piece": zeros,
            }
            values |= {name: own[name] for name in own.column_names}
            found.append(pa.table(values).to_pylist())
        return found

    def outputs_of(self, entry: Mapping[str, Any]) -> list[Split | TokenShard]:
        """Return the outputs that the text of a row is read from."""
        return [self.shard, *([self.split] if self.split else [])]

    def text_of(
        self, entry: Mapping[str, Any], exported: ExportedTokens | None = None
    ) -> TokenizedText:
        """Return the text that a row of the index is of; `exported`: its tokens, where those of the
        shard were dropped."""
        shard = self.shard
        row = shard.origins.row_of(entry["raw_file"], entry["row"])
        document = int(np.searchsorted(self._rows, row))
        spans, order, cut_chars = self._of_part(entry["part"])
        char_start = entry["char_start"]
        edges = np.searchsorted(spans.document, (document, document + 1), sorter=order)
        of_document = order[slice(*edges)]
        at = of_document[np.searchsorted(spans.char_start[of_document], char_start)]
        [facts] = self._documents.slice(document, 1).to_pylist()
        config = shard.manifest.recipe.config
        source, masks = (exported, None) if exported else self._sources
        return TokenizedText(
            source=source,
            masks=masks,
            token_start=0 if exported else int(spans.token_start[at]),
            num_tokens=int(spans.num_tokens[at]),
            char_start=char_start,
            num_chars=cut_chars.get((document, char_start), facts["num_chars"]),
            may_hold_special=config["special_tokens_in_text"] == "control" or shard.has_loss_mask,
            may_have_added=(config["bos"] == "first", config["eos"] == "last"),
            record=facts.get("record"),
            shard=shard,
            raw_file=entry["raw_file"],
            row=entry["row"],
            text_hash=facts["text_hash"],
            is_cut=(document, char_start) in cut_chars,
        )

    @cached_property
    def _documents(self) -> pa.Table:
        has_records = "num_records" in self.shard.manifest.counts
        columns = ["row", "num_chars", "text_hash", *(["record"] if has_records else [])]
        return self.shard.documents(columns)

    @cached_property
    def _rows(self) -> npt.NDArray[np.int64]:
        """The row of each document, its chunks joined once for all texts."""
        return to_numpy(self._documents["row"])

    @cached_property
    def _sources(self) -> tuple[TokenSource, TokenSource | None]:
        """The tokens, and their loss mask."""
        if self.split is not None:
            return self.split.token_source(is_lazy=True), self.split.loss_mask_source()
        masks = self.shard.loss_mask() if self.shard.has_loss_mask else None
        return self.shard.tokens(is_lazy=True), masks

    def _of_part(self, part: str) -> tuple[PartSpans, npt.NDArray[np.int64], CutChars]:
        """Return the spans of a part, which can be shuffled, their order by document and place in
        it, and the characters of spans of cut documents."""
        if part not in self._of_parts and self.split is None:
            table = self.shard.documents([*OF_SHARD.values()])
            document, zeros = np.arange(len(table)), np.zeros(len(table), dtype=np.int64)
            values = {name: to_numpy(table[of]) for name, of in OF_SHARD.items()}
            spans = PartSpans(document=document, char_start=zeros, **values)
            self._of_parts[part] = spans, document, {}
        elif part not in self._of_parts and self.split is not None:
            rows, names = self.split.rows(part), ("document", "char_start", "num_chars")
            cut = zip(*(rows[name][rows["is_cut"]].tolist() for name in names), strict=True)
            cut_chars = {(document, start): num_chars for document, start, num_chars in cut}
            spans = self.split.spans(part)
            order = np.lexsort((spans.char_start, spans.document))
            self._of_parts[part] = spans, order, cut_chars
        return self._of_parts[part]


class ExportTexts:
    """Finds the texts of an export, in the splits of its raw files; each is opened once."""

    def __init__(
        self, export: StoredOutput, ancestry: Ancestry, *, max_splits: int | None = None
    ) -> None:
        """`max_splits`: how many are opened; any more count as not there."""
        self._export, self._ancestry, self._max_splits = export, ancestry, max_splits
        self._of_files: dict[str, Texts] = {}
        self._of_splits: dict[Path, Texts] = {}
        self.has_left_out = False
        """True once a split was not opened because of `max_splits`."""

    def entries(
        self, part: str | None, spans: Sequence[tuple[int, int]]
    ) -> list[list[dict[str, Any]]]:
        """Return the rows of the index that touch each of some spans of positions of a part.

        Raises: ConfigError for a part that it has not; CorruptOutputError."""
        export = self._export
        Export(export).check_part(part)
        if not export.store.is_far(export, INDEX_NAME):
            check_files(export, only={INDEX_NAME})
        return read_spans(export, part or "", spans)

    def outputs_of(self, entry: Mapping[str, Any]) -> list[Split | TokenShard]:
        """Return the outputs that the text of a row of the index is read from. Raises: as
        `text_of`."""
        return self._open(entry).outputs_of(entry)

    def text_of(self, entry: Mapping[str, Any]) -> TokenizedText:
        """Return the text that a row of the index is of.

        Raises: MissingOutputError where the store does not have the split of its raw file;
        CorruptOutputError where a table is damaged.
        """
        texts = self._open(entry)
        is_dropped = bool(texts.shard.manifest.dropped)
        return texts.text_of(entry, ExportedTokens(self._export, entry) if is_dropped else None)

    def _open(self, entry: Mapping[str, Any]) -> Texts:
        name = entry["raw_file"]
        if name not in self._of_files:
            if len(self._of_splits) == self._max_splits:
                self.has_left_out = True
                raise MissingOutputError(
                    where=self._export.folder,
                    expected=f"raw files of {self._max_splits:,} splits",
                    found=name,
                    remedy="trace its tokens alone",
                )
            split = self._ancestry.split_of(self._export, name)
            if split.folder not in self._of_splits:
                tables = {SPANS_NAME, *split.shard.names(DOCUMENTS_NAME)}
                check_files(split, split.shard, only=tables)
                self._of_splits[split.folder] = Texts(split.shard, split)
            self._of_files[name] = self._of_splits[split.folder]
        return self._of_files[name]

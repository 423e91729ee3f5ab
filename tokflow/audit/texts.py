"""The texts that the tokens of an export were made from, found by the rows of its index."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.audit.ancestry import Ancestry
from tokflow.errors import MissingOutputError
from tokflow.split.spans import SPANS_NAME, PartSpans, Split
from tokflow.store.arrow import to_numpy
from tokflow.store.integrity import check_files
from tokflow.store.store import StoredOutput
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.token_source import TokenSource
from tokflow.tokens.writer import DOCUMENTS_NAME


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizedText:
    """A text that was tokenized: a document, or a span of one that was cut."""

    source: TokenSource
    """The tokens that it is some of."""
    token_start: int
    num_tokens: int
    """With the BOS and EOS that were put around it."""
    char_start: int
    """Code points of the document before it."""
    num_chars: int
    may_hold_special: bool
    """True if the text itself may hold EOS or BOS, as chats do."""
    may_have_added: tuple[bool, bool]
    """True if a BOS may have been put before it, and an EOS behind it."""
    record: int | None
    """The record that a transform made the document of."""
    shard: TokenShard
    """The token shard that its document is of."""
    raw_file: str
    row: int
    """Of its document in the raw file."""
    text_hash: bytes
    """Of its document."""
    is_cut: bool
    """True if it is a span of its document, or a budget of tokens ended it early."""

    @property
    def token_ids(self) -> npt.NDArray[np.unsignedinteger]:
        """All its tokens, (num_tokens,)."""
        return self.between(0, self.num_tokens)

    def between(self, start: int, stop: int) -> npt.NDArray[np.unsignedinteger]:
        """Return some of its tokens, counted from its first."""
        stop = min(stop, self.num_tokens)
        return self.source.read(self.token_start + start, self.token_start + stop)


class Texts:
    """Finds the texts of one split; each of its tables is read once."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self._of_parts: dict[str, tuple[PartSpans, dict[tuple[int, int], int]]] = {}

    def text_of(self, entry: Mapping[str, Any]) -> TokenizedText:
        """Return the text that a row of the index is of."""
        shard = self.split.shard
        row = shard.origins.row_of(entry["raw_file"], entry["row"])
        document = int(np.searchsorted(self._rows, row))
        spans, cut_chars = self._of_part(entry["part"])
        char_start = entry["char_start"]
        first, stop = np.searchsorted(spans.document, (document, document + 1))
        at = first + np.searchsorted(spans.char_start[first:stop], char_start)
        num_chars = self._documents["num_chars"][document].as_py()
        special = shard.manifest.config["special_tokens_in_text"]
        return TokenizedText(
            source=self._source,
            token_start=int(spans.token_start[at]),
            num_tokens=int(spans.num_tokens[at]),
            char_start=char_start,
            num_chars=cut_chars.get((document, char_start), num_chars),
            may_hold_special=shard.has_loss_mask or special == "control",
            may_have_added=(
                shard.manifest.config["bos"] == "first",
                shard.manifest.config["eos"] == "last",
            ),
            record=self._documents["record"][document].as_py() if self._has_records else None,
            shard=shard,
            raw_file=entry["raw_file"],
            row=entry["row"],
            text_hash=self._documents["text_hash"][document].as_py(),
            is_cut=(document, char_start) in cut_chars,
        )

    @property
    def _has_records(self) -> bool:
        return "num_records" in self.split.shard.manifest.counts

    @cached_property
    def _documents(self) -> pa.Table:
        columns = ["row", "num_chars", "text_hash", *(["record"] if self._has_records else [])]
        return self.split.shard.documents(columns)

    @cached_property
    def _rows(self) -> npt.NDArray[np.int64]:
        return to_numpy(self._documents["row"])

    @cached_property
    def _source(self) -> TokenSource:
        return self.split.token_source(is_lazy=True)

    def _of_part(self, part: str) -> tuple[PartSpans, dict[tuple[int, int], int]]:
        """Return the spans of a part in file order, and of cut documents' their characters."""
        if part not in self._of_parts:
            rows = self.split.span_table(part)
            rows = rows.filter(rows["is_cut"])
            names = ("document", "char_start", "num_chars")
            document, char_start, num_chars = (rows[name].to_pylist() for name in names)
            keys = zip(document, char_start, strict=True)
            cut_chars = dict(zip(keys, num_chars, strict=True))
            self._of_parts[part] = _in_file_order(self.split.spans(part)), cut_chars
        return self._of_parts[part]


def _in_file_order(spans: PartSpans) -> PartSpans:
    """Return spans, which may be shuffled, in the order of documents and of places in them."""
    order = np.lexsort((spans.char_start, spans.document))
    return PartSpans(
        document=spans.document[order],
        char_start=spans.char_start[order],
        token_start=spans.token_start[order],
        num_tokens=spans.num_tokens[order],
    )


class ExportTexts:
    """Finds the texts of an export, in the splits of its raw files; each is opened once."""

    def __init__(self, export: StoredOutput, ancestry: Ancestry) -> None:
        self._export, self._ancestry = export, ancestry
        self._of_files: dict[str, Texts] = {}
        self._of_splits: dict[Path, Texts] = {}

    @property
    def num_splits(self) -> int:
        """Splits that were opened."""
        return len(self._of_splits)

    def outputs_of(self, entry: Mapping[str, Any]) -> tuple[Split, TokenShard]:
        """Return the outputs that the text of a row of the index was read from."""
        split = self._of_files[entry["raw_file"]].split
        return split, split.shard

    def is_open(self, entry: Mapping[str, Any]) -> bool:
        """Return whether the split of the raw file that a row of the index names was opened."""
        return entry["raw_file"] in self._of_files

    def text_of(self, entry: Mapping[str, Any]) -> TokenizedText:
        """Return the text that a row of the index is of. Raises: as `open`."""
        self.open(entry)
        return self._of_files[entry["raw_file"]].text_of(entry)

    def open(self, entry: Mapping[str, Any]) -> None:
        """Open the split of the raw file that a row of the index names, if it was not before.

        Raises: MissingOutputError where the store does not have it; CorruptOutputError where a
        table is damaged.
        """
        name = entry["raw_file"]
        if name not in self._of_files:
            split = self._ancestry.split_of(self._export, name)
            if split.folder not in self._of_splits:
                tables = {SPANS_NAME, *split.shard.names(DOCUMENTS_NAME)}
                check_files(split, split.shard, only=tables)
                self._of_splits[split.folder] = Texts(split)
            self._of_files[name] = self._of_splits[split.folder]


def open_tokenizer(export: StoredOutput, ancestry: Ancestry) -> Tokenizer | None:
    """Return the tokenizer of an export, its files compared with their checksums; None where the
    store does not have it. Raises: CorruptOutputError."""
    try:
        tokenizer = ancestry.tokenizer(export)
    except MissingOutputError:
        return None
    if tokenizer is not None:
        check_files(tokenizer)
    return tokenizer

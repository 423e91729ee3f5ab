"""Documents -> token shard: tokens.bin, documents.parquet, of chats loss_mask.bin; one raw file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.documents import Batch, DocumentsConfig, deciding_fields, ranges
from tokflow.errors import MissingOutputError
from tokflow.raw import RawPartition
from tokflow.store.manifest import Manifest, Recipe
from tokflow.store.store import InStore, StoredOutput
from tokflow.store.tables import read_table, repeated, to_arrow, to_numpy, to_texts
from tokflow.store.versions import known_changes
from tokflow.tokenizers.chat.template import stop_tokens
from tokflow.tokenizers.tokenizer import Tokenizer, TokenizerConfig
from tokflow.tokens import TokenSource, mapped, shard_files
from tokflow.tokens.loss_mask import TokenBatch

TOKENS_VERSION = 5
"""Raised when the same input would give other bytes."""

CHATS_VERSION = 4
"""Raised when the same chats, or prompts with completions, would be other ones, or what is counted
of them; the tokens of texts are not made again."""


@dataclass(frozen=True, slots=True)
class TokenShard(InStore):
    """The tokens of one partition, documents end to end."""

    stored: StoredOutput
    num_passes: int = 1
    """Passes over the documents of a shard in a mixture, each as one more file of a group."""

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Little-endian uint16 or uint32."""
        dtype: np.dtype[np.unsignedinteger] = np.dtype(self.manifest.details["dtype"])
        return dtype

    @property
    def num_tokens(self) -> int:
        """Tokens in tokens.bin, BOS and EOS included."""
        return self.manifest.counts["num_tokens"]

    @property
    def has_loss_mask(self) -> bool:
        """True if only some tokens are supervised: the documents are chats."""
        files = {*self.manifest.files, *self.manifest.dropped}
        return self.names(shard_files.LOSS_MASK_NAME)[0] in files

    @property
    def origins(self) -> "Origins":
        """The raw files that its rows are of."""
        files = self.manifest.details.get("files")
        if files is None:
            return Origins([str(self.manifest.partition)], [0])
        edges = list(accumulate((file["num_rows"] for file in files), initial=0))
        return Origins([file["raw_file"] for file in files], edges[:-1])

    @property
    def segments(self) -> list[Mapping[str, int]]:
        """Counts of each segment, those of the shard where it is one: num_documents, num_chars,
        num_tokens; where there are several, num_rows, with what is bad or left out, too, and of one
        file with a transform num_records."""
        return list(self.manifest.details.get("segments", [self.manifest.counts]))

    def names(self, name: str) -> list[str]:
        """Return the names of a file in all segments; `[name]` for a shard that is one segment."""
        segments = range(len(self.manifest.details.get("segments", [])))
        return [shard_files.segment_name(name, number) for number in segments] or [name]

    def tokens(self, *, is_lazy: bool = False) -> TokenSource:
        """Return the token ids, memory-mapped read-only; (num_tokens,). `is_lazy`: for a `read` of
        few of them, so that of large files at a URL no more comes."""
        return self._source(shard_files.TOKENS_NAME, self.dtype, is_lazy=is_lazy)

    def loss_mask(self) -> TokenSource:
        """Return the loss mask of chats, memory-mapped read-only, uint8: 1 is supervised."""
        return self._source(shard_files.LOSS_MASK_NAME, np.dtype(np.uint8))

    def check_tokens(self) -> None:
        """Raise MissingOutputError where the tokens were dropped."""
        if dropped := self.manifest.dropped:
            raise MissingOutputError(
                where=self.stored.shown,
                expected=", ".join(dropped),
                found="none: they were dropped (`keep: exports`, or `tokflow gc --tokens`)",
                remedy="read an export; `tokflow run` makes them again where an output needs them",
            )

    def _source(self, name: str, dtype: np.dtype[Any], *, is_lazy: bool = False) -> TokenSource:
        self.check_tokens()
        stored, names = self.stored, self.names(name)
        if is_lazy and any(stored.store.is_far(stored, of) for of in names):
            return TokenSource(tuple(stored.numbers(of, dtype) for of in names))
        return TokenSource(tuple(mapped(stored.file(of), dtype) for of in names))

    def documents(self, columns: list[str] | None = None) -> pa.Table:
        """Return documents.parquet, one row per document in the order of files and rows, and all
        of it again for each further pass of a mixture."""
        tables, bases = [], dict.fromkeys(COUNTED_FROM, 0)
        for name, counts in zip(self.names(shard_files.DOCUMENTS_NAME), self.segments, strict=True):
            tables.append(_moved(read_table(self.stored.file(name), columns), bases))
            for column, num in COUNTED_FROM.items():
                bases[column] += counts.get(num, 0)
        table = pa.concat_tables(tables)
        passes = ({"row": number * ROWS_OF_PASS} for number in range(self.num_passes))
        return pa.concat_tables(_moved(table, rows) for rows in passes)

    @property
    def keep_columns(self) -> tuple[str, ...]:
        """The columns of the raw files that are kept for each document."""
        return tuple(self.manifest.recipe.config.get("documents", {}).get("keep_columns", ()))

    def kept_columns(self) -> pa.Table:
        """Return kept_columns.parquet, one row per document in the order of files and rows."""
        tables = [read_table(self.stored.file(of)) for of in self.names(shard_files.KEPT_NAME)]
        return pa.concat_tables(tables * self.num_passes)


@dataclass(frozen=True, slots=True)
class Origins:
    """The raw files of a token shard, in the order of its rows."""

    raw_files: Sequence[str]
    """Keys of the raw files."""
    first_rows: Sequence[int]
    """The row of the shard with which each begins."""

    def of_rows(self, rows: npt.NDArray[np.int64]) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
        """Return the raw file of each row of the shard, and its row in that file."""
        if len(self.raw_files) == 1:
            return repeated(self.raw_files[0], len(rows)), rows
        number, names = self.numbers_of(rows), to_texts(self.raw_files).cast(pa.string())
        return names.take(to_arrow(number)), rows - np.array(self.first_rows)[number]

    def numbers_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the ordinal of the raw file of each row of the shard."""
        return np.searchsorted(np.array(self.first_rows), rows, side="right") - 1

    def keys_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return a number for each row of the shard that tells its file, ROWS_OF_PASS for each
        before it, and its row in that file."""
        number = self.numbers_of(rows)
        found: npt.NDArray[np.int64] = rows - np.array(self.first_rows)[number]
        return found + number * ROWS_OF_PASS

    def row_of(self, raw_file: str, row: int) -> int:
        """Return the row of the shard for a row of one of its raw files."""
        return self.first_rows[self.raw_files.index(raw_file)] + row

    def path_of(self, raw_file: str, run: Mapping[str, Any]) -> Path | None:
        """Return the path that a raw file had when it was read, from the run's `raw_paths`; None if
        unknown."""
        paths = run.get("raw_paths") or [None]
        path = paths[self.raw_files.index(raw_file) % len(paths)]  # a mixture has several passes
        return None if path is None else Path(path)


def places_of(
    some: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return where some rows are among all those of a shard, which ascend, and whether each is."""
    place = np.searchsorted(rows, some)
    return place, np.searchsorted(rows, some, side="right") > place


def with_tokens_of(documents: pa.Table) -> Callable[[Batch], Batch]:
    """Return a function that gives documents which are read again as many tokens as a shard has of
    them, none to those that it has not, for a limit of tokens. `documents`: row and num_tokens."""
    rows, num_tokens = to_numpy(documents["row"]), to_numpy(documents["num_tokens"])

    def with_tokens(batch: Batch) -> Batch:
        place, is_there = places_of(batch.rows, rows)
        found = np.zeros(len(batch.rows), dtype=np.int64)
        found[is_there] = num_tokens[place[is_there]]
        return replace(batch, tokens=TokenBatch(np.zeros(0, dtype=np.uint16), found))

    return with_tokens


ROWS_OF_PASS = 2**40
"""Rows that a pass of a mixture takes up, more than any file has."""

COUNTED_FROM = {
    "row": "num_rows",
    "char_offset": "num_chars",
    "token_offset": "num_tokens",
    "record": "num_records",
}
"""Columns that start from 0 in each segment, with the count that precedes them."""


def _moved(table: pa.Table, bases: Mapping[str, int]) -> pa.Table:
    """Return the documents of a segment with positions that count from the whole shard's start."""
    if not any(bases.values()):
        return table
    for index, field in enumerate(table.schema):
        if base := bases.get(field.name, 0):
            table = table.set_column(index, field, to_arrow(to_numpy(table[index]) + base))
    return table


def tokens_recipe(
    raw: RawPartition | None,
    documents: DocumentsConfig,
    config: TokenizerConfig,
    tokenizer: Tokenizer | None,
) -> Recipe:
    """Return the recipe of the token shard of `raw`, still without its parents.

    The engine is no part of it until gigatoken is found wrong: from then on shards of which it
    made some are other shards than those of the reference. Without a raw file and a tokenizer: what
    the config and the code decide of any file's.
    """
    is_in_ranges = raw is not None and shard_files.may_have_segments(raw, documents)
    has_special = tokenizer is None or bool(tokenizer.special_tokens)
    is_control = config.special_tokens_in_text == "control" and has_special
    is_wrong = tokenizer is not None and tokenizer.verdict is not None
    has_either = config.eos == "last" or config.bos == "first"
    stops = stop_tokens(documents, tokenizer) if documents.is_rendered else []
    return Recipe(
        stage="tokens",
        version=TOKENS_VERSION + (CHATS_VERSION if documents.is_chat else 0),
        config={
            "documents": deciding_fields(documents, raw.sizes if raw else {}),
            "eos": config.eos,
            "bos": config.bos,
            **({} if config.eos_of_empty or not has_either else {"eos_of_empty": False}),
            "special_tokens_in_text": "control" if is_control else "ordinary",
            **({"engine": "reference"} if is_wrong else {}),
            **({"stop_tokens": stops} if stops else {}),
            **({"range_bytes": ranges.RANGE_BYTES} if is_in_ranges else {}),
            **known_changes("tokens", config.kind),
        },
        parents={},
    )


def is_shard(manifest: Manifest) -> bool:
    """Return whether an output is a token shard."""
    return manifest.recipe.stage == "tokens"

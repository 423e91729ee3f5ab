"""The files of a token shard, written while they are hashed and what is in them is counted."""

import dataclasses
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from tokflow.documents import Batch, DocumentsConfig, DocumentSource, Reject
from tokflow.documents.kept_columns import KeptColumns
from tokflow.store.arrow import make_table
from tokflow.store.hashed_writer import HashedWriter
from tokflow.store.manifest import FileEntry, checksum
from tokflow.store.tables import TableWriter
from tokflow.tokenizers.engines.protocol import offsets_of, text_buffers
from tokflow.tokens.bos_eos import TokenBatch
from tokflow.tokens.document_table import (
    DOCUMENTS_SCHEMA,
    RECORDS_SCHEMA,
    ROWS_PER_GROUP,
    text_hashes,
)

TOKENS_NAME = "tokens.bin"
LOSS_MASK_NAME = "loss_mask.bin"
DOCUMENTS_NAME = "documents.parquet"
KEPT_NAME = "kept_columns.parquet"
REJECTS_NAME = "rejects.jsonl"


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
        folder: Path,
        source: DocumentSource,
        documents: DocumentsConfig,
        *,
        segment: int | None = None,
    ) -> None:
        self._folder, self._segment = folder, segment
        self._schema = DOCUMENTS_SCHEMA if documents.transform is None else RECORDS_SCHEMA
        has_loss_mask = documents.is_chat
        self._closing = ExitStack()
        names = [TOKENS_NAME, *([LOSS_MASK_NAME] if has_loss_mask else [])]
        self._files = {
            name: self._closing.enter_context(HashedWriter(self._path(name))) for name in names
        }
        self._table = self._closing.enter_context(
            TableWriter(self._path(DOCUMENTS_NAME), self._schema, rows_per_group=ROWS_PER_GROUP)
        )
        self._kept = KeptColumns(source, documents) if documents.keep_columns else None
        if self._kept is not None:
            path, schema = self._path(KEPT_NAME), self._kept.schema
            self._kept_table = self._closing.enter_context(
                TableWriter(path, schema, rows_per_group=ROWS_PER_GROUP)
            )
        names = ["documents", "empty_documents", "chars", "bytes", "tokens"]
        of_chats = ["loss_tokens", "documents_without_loss", "documents_with_boundary_token"]
        names += of_chats if has_loss_mask else []
        self.counts = {f"num_{name}": 0 for name in names}
        self.num_eos = 0
        """Ids that are EOS, also of texts."""
        self.num_without_tokens = 0
        """Documents that have no token, not even an EOS."""

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *error: Any) -> None:
        self._closing.__exit__(*error)

    def add(self, batch: Batch, tokens: TokenBatch) -> None:
        """Write the documents of a batch and their tokens."""
        self._files[TOKENS_NAME].write(tokens.token_ids)
        if tokens.loss_mask is not None:
            self._files[LOSS_MASK_NAME].write(tokens.loss_mask)
        counts, num_chars, num_tokens = self.counts, batch.num_chars, tokens.num_tokens
        columns = {
            "row": batch.rows,
            "char_offset": counts["num_chars"] + np.cumsum(num_chars) - num_chars,
            "num_chars": num_chars,
            "token_offset": counts["num_tokens"] + np.cumsum(num_tokens) - num_tokens,
            "num_tokens": num_tokens,
            "text_hash": text_hashes(batch.texts),
        }
        if batch.records is not None:
            columns["record"] = batch.records
        self._table.add(make_table(columns, self._schema))
        if self._kept is not None:
            self._kept_table.add(self._kept.of(batch))
        counts["num_documents"] += len(batch.rows)
        counts["num_empty_documents"] += int(np.count_nonzero(num_chars == 0))
        counts["num_chars"] += int(num_chars.sum())
        counts["num_bytes"] += bytes_of(batch)
        counts["num_tokens"] += len(tokens.token_ids)
        self.num_eos += tokens.num_eos
        self.num_without_tokens += int(np.count_nonzero(num_tokens == 0))
        if tokens.loss_mask is not None:
            supervised = np.append(0, np.cumsum(tokens.loss_mask, dtype=np.int64))
            of_documents = np.diff(supervised[offsets_of(num_tokens)])
            counts["num_loss_tokens"] += int(supervised[-1])
            counts["num_documents_without_loss"] += int(np.count_nonzero(of_documents == 0))
        if tokens.has_boundary_token is not None:
            num_boundary = int(np.count_nonzero(tokens.has_boundary_token))
            counts["num_documents_with_boundary_token"] += num_boundary

    @property
    def num_lost_values(self) -> int:
        """Values of kept columns that are null since they are neither text nor JSON."""
        return 0 if self._kept is None else self._kept.num_lost_values

    def entries(self, rejects: Sequence[Reject]) -> dict[str, FileEntry]:
        """Write rejects.jsonl if there are any; return size and sha256 of all files, now closed.

        Raises: ConfigError for a column to keep that the raw file turns out not to have.
        """
        if self._kept is not None:
            self._kept.check()
        entries = {self._path(name).name: file.entry() for name, file in self._files.items()}
        written = [self._path(DOCUMENTS_NAME)]
        written += [] if self._kept is None else [self._path(KEPT_NAME)]
        if rejects:
            written.append(self._path(REJECTS_NAME))
            written[-1].write_bytes(b"".join(map(reject_line, rejects)))
        return {**entries, **{path.name: checksum(path) for path in written}}

    def _path(self, name: str) -> Path:
        return self._folder / segment_name(name, self._segment)


def bytes_of(batch: Batch) -> int:
    """Return how much text a batch holds, in bytes of UTF-8."""
    offsets, _ = text_buffers(batch.texts)
    return int(offsets[-1] - offsets[0])


def reject_line(reject: Reject) -> bytes:
    """Return the line of a reject in rejects.jsonl; only of a group it has the raw file, and only
    with a transform the record."""
    fields = dataclasses.asdict(reject)
    for name in ("raw_file", "record"):
        if fields[name] is None:
            del fields[name]
    return json.dumps(fields).encode() + b"\n"

"""The files of a token shard, written while they are hashed and what is in them is counted."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tokflow.documents import Batch, DocumentsConfig, Reject
from tokflow.errors import BadDocumentError
from tokflow.raw import RawFile
from tokflow.store.manifest import FileEntry, checksum
from tokflow.tokenizers.engines import Encoded, GatedEngine
from tokflow.tokenizers.engines.protocol import text_buffers
from tokflow.tokenizers.tokenizer import Tokenizer, TokenizerConfig
from tokflow.tokens.bos_eos import ChatMarks, eos_per_document, with_special_ids
from tokflow.tokens.chat import ChatEncoder
from tokflow.tokens.document_table import DocumentTableWriter
from tokflow.tokens.prefetch import read_ahead, write_behind
from tokflow.tokens.special_counts import SpellingCounter

TOKENS_NAME = "tokens.bin"
LOSS_MASK_NAME = "loss_mask.bin"
DOCUMENTS_NAME = "documents.parquet"
REJECTS_NAME = "rejects.jsonl"

SYNC_BYTES = 16_000_000
"""Tokens are put on disk every so many bytes, while the engine works, and not all at the end."""

Progress = Callable[[int, int], None]
"""Called with the number of documents and of UTF-8 bytes of each batch that was tokenized."""


class ShardWriter:
    """Writes the three files of a shard while it counts what goes through."""

    def __init__(
        self,
        raw: RawFile,
        documents: DocumentsConfig,
        config: TokenizerConfig,
        tokenizer: Tokenizer,
        folder: Path,
        progress: Progress | None,
    ) -> None:
        self._raw = raw
        self._is_chat = documents.is_chat
        self._config = config
        self._tokenizer = tokenizer
        self._folder = folder
        self._progress = progress
        self._special_tokens = SpellingCounter(tokenizer.special_tokens)
        names = [TOKENS_NAME, *([LOSS_MASK_NAME] if documents.is_chat else [])]
        self._sha256 = {name: hashlib.sha256() for name in names}
        self._num_unsynced = 0
        self._rejects: list[Reject] = []
        self.counts: dict[str, int] = dict.fromkeys(
            (
                "num_documents",
                "num_rejects",
                "num_empty_documents",
                "num_chars",
                "num_bytes",
                "num_tokens",
                "num_special_tokens_in_text",
                *(("num_eos", "num_eos_in_text") if config.eos == "last" else ()),
                *(("num_loss_tokens",) if documents.is_chat else ()),
            ),
            0,
        )

    def reject(self, reject: Reject) -> None:
        """Keep a document that was not taken."""
        self._rejects.append(reject)

    def write(self, engine: GatedEngine, batches: Iterator[Batch]) -> None:
        """Read, encode and write, each overlapped with the next."""
        chats = ChatEncoder(engine, self._tokenizer, self._config) if self._is_chat else None
        with (
            ExitStack() as stack,
            DocumentTableWriter(self._folder / DOCUMENTS_NAME) as table,
        ):
            files = {
                name: stack.enter_context((self._folder / name).open("wb")) for name in self._sha256
            }
            with write_behind(partial(self._write_batch, files, table)) as submit:
                for batch in read_ahead(batches):
                    self._check_spelling(batch)
                    if chats is None:
                        submit((batch, engine.encode(batch.texts), None))
                    else:
                        submit((batch, *chats.encode(batch, partial(self._name, batch))))
        if self._config.eos == "last":
            ending = eos_per_document(self._config, self._tokenizer) * self.counts["num_documents"]
            self.counts["num_eos_in_text"] = self.counts["num_eos"] - ending
        self.counts["num_rejects"] = len(self._rejects)
        if self._rejects:
            lines = [json.dumps(dataclasses.asdict(reject)) + "\n" for reject in self._rejects]
            (self._folder / REJECTS_NAME).write_text("".join(lines), encoding="utf-8")

    def files(self) -> dict[str, FileEntry]:
        """Return size and sha256 of the files written."""
        entries = {
            name: FileEntry(
                num_bytes=(self._folder / name).stat().st_size, sha256=sha256.hexdigest()
            )
            for name, sha256 in self._sha256.items()
        }
        entries[DOCUMENTS_NAME] = checksum(self._folder / DOCUMENTS_NAME)
        if self._rejects:
            entries[REJECTS_NAME] = checksum(self._folder / REJECTS_NAME)
        return entries

    def _name(self, batch: Batch, index: int) -> str:
        return f"{self._raw.path}: document {batch.rows[index]:,}"

    def _check_spelling(self, batch: Batch) -> None:
        found = self._special_tokens.in_batch(batch)
        self.counts["num_special_tokens_in_text"] += sum(found.values())
        if found and self._config.special_tokens_in_text == "error":
            index, name = min(found)
            raise BadDocumentError(
                where=self._name(batch, index),
                expected="no special token spelt in the text",
                found=repr(name),
                remedy="set tokenizer.special_tokens_in_text: ordinary to encode it as "
                "plain text, or control to let it become the control token",
                path=self._raw.path,
                row=int(batch.rows[index]),
            )

    def _write_batch(
        self,
        files: Mapping[str, BinaryIO],
        table: DocumentTableWriter,
        made: tuple[Batch, Encoded, ChatMarks | None],
    ) -> None:
        batch, encoded, chat = made
        finished = with_special_ids(
            encoded, self._config, self._tokenizer, chat=chat, name=partial(self._name, batch)
        )
        self._write_array(files[TOKENS_NAME], TOKENS_NAME, finished.token_ids)
        if finished.loss_mask is not None:
            self._write_array(files[LOSS_MASK_NAME], LOSS_MASK_NAME, finished.loss_mask)
            self.counts["num_loss_tokens"] += int(np.count_nonzero(finished.loss_mask))
        if self._config.eos == "last":
            self.counts["num_eos"] += finished.num_eos
        num_tokens = finished.num_tokens
        table.add(
            batch.texts,
            row=batch.rows,
            char_offset=self.counts["num_chars"] + np.cumsum(batch.num_chars) - batch.num_chars,
            num_chars=batch.num_chars,
            token_offset=self.counts["num_tokens"] + np.cumsum(num_tokens) - num_tokens,
            num_tokens=num_tokens,
        )
        offsets, _ = text_buffers(batch.texts)
        num_bytes = int(offsets[-1] - offsets[0])
        self.counts["num_documents"] += len(batch.rows)
        self.counts["num_empty_documents"] += int(np.count_nonzero(batch.num_chars == 0))
        self.counts["num_chars"] += int(batch.num_chars.sum())
        self.counts["num_bytes"] += num_bytes
        self.counts["num_tokens"] += len(finished.token_ids)
        if self._progress:
            self._progress(len(batch.rows), num_bytes)

    def _write_array(self, file: BinaryIO, name: str, values: npt.NDArray[Any]) -> None:
        view = values.data.cast("B")
        file.write(view)
        self._sha256[name].update(view)
        self._num_unsynced += len(view)
        if self._num_unsynced > SYNC_BYTES:
            file.flush()
            os.fsync(file.fileno())
            self._num_unsynced = 0

"""Documents -> token shard: tokens.bin, documents.parquet, of chats loss_mask.bin; one raw file."""

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.arrays import read_table
from tokflow.chat import open_renderer
from tokflow.chat_tokens import ChatEncoder
from tokflow.document_table import DocumentTableWriter
from tokflow.documents import Batch, DocumentsConfig, Reject, deciding_fields, read_documents
from tokflow.engines import Encoded, EngineDiffersError, GatedEngine, InText, open_engine
from tokflow.engines.protocol import text_buffers
from tokflow.errors import BadDocumentError, CorruptOutputError, four_parts
from tokflow.manifest import (
    FileEntry,
    Manifest,
    checksum,
    fingerprint,
    read_manifest,
    write_manifest,
)
from tokflow.overlap import read_ahead, write_behind
from tokflow.raw import RawFile, check_unchanged
from tokflow.special_ids import ChatMarks, eos_per_document, with_special_ids
from tokflow.spelling import SpellingCounter
from tokflow.tokenizer import Tokenizer, TokenizerConfig, require_special_ids

TOKENS_VERSION = 2
"""Raised when the same input would give other bytes."""

TOKENS_NAME = "tokens.bin"
LOSS_MASK_NAME = "loss_mask.bin"
DOCUMENTS_NAME = "documents.parquet"
REJECTS_NAME = "rejects.jsonl"

BATCH_BYTES = 8_000_000
"""Text tokenized at once: small enough that a batch's tokens stay in cache."""

SYNC_BYTES = 16_000_000
"""Tokens are put on disk every so many bytes, while the engine works, and not all at the end."""

Progress = Callable[[int, int], None]
"""Called with the number of documents and of UTF-8 bytes of each batch that was tokenized."""


@dataclass(frozen=True, slots=True)
class TokenShard:
    """The tokens of one raw file, documents end to end, as `open_token_shard` found them."""

    folder: Path
    manifest: Manifest

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Little-endian uint16 or uint32."""
        dtype: np.dtype[np.unsignedinteger] = np.dtype(self.manifest.details["dtype"])
        return dtype

    @property
    def num_tokens(self) -> int:
        """Tokens in tokens.bin, BOS and EOS included."""
        return self.manifest.counts["num_tokens"]

    def token_ids(self) -> npt.NDArray[np.unsignedinteger]:
        """Return tokens.bin, memory-mapped read-only; shape (num_tokens,)."""
        if self.num_tokens == 0:  # an empty file cannot be mapped
            return np.zeros(0, dtype=self.dtype)
        return np.memmap(self.folder / TOKENS_NAME, dtype=self.dtype, mode="r")

    @property
    def has_loss_mask(self) -> bool:
        """Whether only some tokens are learnt: the documents are chats."""
        return LOSS_MASK_NAME in self.manifest.files

    def loss_mask(self) -> npt.NDArray[np.uint8]:
        """Return loss_mask.bin, memory-mapped read-only, shape (num_tokens,): 1 is learnt.

        Only a shard of chats has it.
        """
        if self.num_tokens == 0:
            return np.zeros(0, dtype=np.uint8)
        return np.memmap(self.folder / LOSS_MASK_NAME, dtype=np.uint8, mode="r")

    def documents(self, columns: list[str] | None = None) -> pa.Table:
        """Return documents.parquet, one row per document in file order."""
        return read_table(self.folder / DOCUMENTS_NAME, columns)


def tokens_fingerprint(
    raw: RawFile, documents: DocumentsConfig, config: TokenizerConfig, tokenizer: Tokenizer
) -> str:
    """Return the fingerprint of the token shard of `raw`, known before it is made."""
    return fingerprint(
        "tokens",
        version=TOKENS_VERSION,
        config=_deciding_config(documents, config),
        parents=_parents(raw, tokenizer),
    )


def write_token_shard(
    raw: RawFile,
    documents: DocumentsConfig,
    config: TokenizerConfig,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    dataset: str,
    batch_bytes: int = BATCH_BYTES,
    is_parallel: bool | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the token shard of `raw` into the empty `folder`, manifest last.

    The bytes depend on the raw file, the configs and the tokenizer alone: neither on
    `batch_bytes` and `is_parallel` nor on the engine. Memory does not grow with the file, but
    for the longest document. Documents that are set aside are listed in rejects.jsonl.

    Raises: BadDocumentError, RawFileError, TokenizerError.
    """
    require_special_ids(tokenizer, config)
    started = time.perf_counter()
    render = open_renderer(documents, tokenizer)
    of_text = config if render is None else replace(config, special_tokens_in_text="control")
    engine = open_shard_engine(tokenizer, of_text, is_parallel=is_parallel)

    def write(engine: GatedEngine) -> _ShardWriter:
        writer = _ShardWriter(raw, documents, config, tokenizer, folder, progress)
        batches = read_documents(
            raw.path, documents, batch_bytes=batch_bytes, on_reject=writer.reject, render=render
        )
        writer.write(engine, batches)
        return writer

    reason = engine.reason
    try:
        writer = write(engine)
    except EngineDiffersError as error:
        if config.engine == "gigatoken":
            raise
        reason = f"gigatoken differed on a document of this file: {error}"
        engine = open_shard_engine(tokenizer, replace(of_text, engine="reference"))
        writer = write(engine)
    check_unchanged(raw)
    seconds = time.perf_counter() - started
    manifest = Manifest(
        stage="tokens",
        dataset=dataset,
        partition=raw.key,
        version=TOKENS_VERSION,
        fingerprint=tokens_fingerprint(raw, documents, config, tokenizer),
        parents=_parents(raw, tokenizer),
        config=_deciding_config(documents, config),
        counts=dict(writer.counts),
        details={
            "dtype": tokenizer.dtype.str,
            "vocab_size": tokenizer.vocab_size,
            "eos_id": tokenizer.eos_id if config.eos == "last" else None,
            "eos_token": tokenizer.eos_token if config.eos == "last" else None,
            "bos_id": tokenizer.bos_id if config.bos == "first" else None,
            "bos_token": tokenizer.bos_token if config.bos == "first" else None,
        },
        files=writer.files(),
    )
    run = {
        "seconds": round(seconds, 3),
        "engine": engine.name,
        "engine_reason": reason,
        "tokens_per_second": round(writer.counts["num_tokens"] / seconds),
        "megabytes_per_second": round(writer.counts["num_bytes"] / 1e6 / seconds, 2),
    }
    write_manifest(folder, manifest, run=run)


def open_shard_engine(
    tokenizer: Tokenizer, config: TokenizerConfig, *, is_parallel: bool | None = None
) -> GatedEngine:
    """Return the engine that `config` asks for, kept for the next shard.

    Raises: TokenizerError.
    """
    in_text: InText = "control" if config.special_tokens_in_text == "control" else "ordinary"
    return open_engine(tokenizer, choice=config.engine, in_text=in_text, is_parallel=is_parallel)


def open_token_shard(folder: Path) -> TokenShard:
    """Return the token shard in `folder`, its sizes checked against its manifest.

    Raises: MissingOutputError, CorruptOutputError.
    """
    manifest = read_manifest(folder)
    shard = TokenShard(folder, manifest)
    sizes = {TOKENS_NAME: shard.dtype.itemsize}
    sizes |= {LOSS_MASK_NAME: 1} if shard.has_loss_mask else {}
    for name, size in sizes.items():
        num_bytes = (folder / name).stat().st_size
        if num_bytes != shard.num_tokens * size:
            raise CorruptOutputError(
                four_parts(
                    where=folder / name,
                    expected=f"{shard.num_tokens:,} tokens of {size} bytes "
                    f"({shard.num_tokens * size:,} bytes)",
                    found=f"{num_bytes:,} bytes",
                    remedy="delete the folder and run `tokflow run` again",
                )
            )
    return shard


def _deciding_config(documents: DocumentsConfig, config: TokenizerConfig) -> dict[str, Any]:
    return {
        "documents": deciding_fields(documents),
        "eos": config.eos,
        "bos": config.bos,
        "special_tokens_in_text": config.special_tokens_in_text,
    }


def _parents(raw: RawFile, tokenizer: Tokenizer) -> dict[str, str]:
    return {"raw": raw.sha256, "tokenizer": tokenizer.fingerprint}


class _ShardWriter:
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
                four_parts(
                    where=self._name(batch, index),
                    expected="no special token spelt in the text",
                    found=repr(name),
                    remedy="set tokenizer.special_tokens_in_text: ordinary to encode it as "
                    "plain text, or control to let it become the control token",
                ),
                path=self._raw.path,
                row=int(batch.rows[index]),
            )

    def _write_batch(
        self,
        files: Mapping[str, BinaryIO],
        table: "DocumentTableWriter",
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

"""Documents -> token shard: tokens.bin, documents.parquet, of chats loss_mask.bin; one raw file."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.documents import DocumentsConfig, deciding_fields, is_accepted, read_documents
from tokflow.errors import CorruptOutputError
from tokflow.raw import RawFile, check_unchanged
from tokflow.store.arrow import read_table
from tokflow.store.integrity import Stored, check_files
from tokflow.store.manifest import Manifest, Recipe, check_sizes, write_manifest
from tokflow.store.versions import known_changes
from tokflow.tokenizers.chat.renderer import open_renderer
from tokflow.tokenizers.engines import GatedEngine, InText, open_engine
from tokflow.tokenizers.tokenizer import Tokenizer, TokenizerConfig, require_special_ids
from tokflow.tokens.writer import (
    DOCUMENTS_NAME,
    LOSS_MASK_NAME,
    TOKENS_NAME,
    Progress,
    ShardWriter,
)

TOKENS_VERSION = 3
"""Raised when the same input would give other bytes."""

BATCH_BYTES = 8_000_000
"""Text tokenized at once. Batches of 2 MB take gigatoken up to a third more processor time, and it
never uses more than one core for them."""


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


def tokens_recipe(
    raw: RawFile | None,
    documents: DocumentsConfig,
    config: TokenizerConfig,
    tokenizer: Tokenizer | None,
) -> Recipe:
    """Return what decides the token shard of `raw`, known before it is made.

    The engine is no part of it until gigatoken is found wrong: from then on shards of which it
    made some are other shards than those of the reference. Without a raw file and a tokenizer: what
    the config and the code decide of any file's.
    """
    is_wrong = tokenizer is not None and tokenizer.verdict is not None
    return Recipe(
        stage="tokens",
        version=TOKENS_VERSION,
        config={
            "documents": deciding_fields(documents, {raw.path: raw.num_bytes} if raw else {}),
            "eos": config.eos,
            "bos": config.bos,
            "special_tokens_in_text": in_text_of(config),
            **({"engine": "reference"} if is_wrong else {}),
            **known_changes("tokens", config.kind),
        },
        parents={"raw": raw.sha256, "tokenizer": tokenizer.fingerprint}
        if raw and tokenizer
        else {},
    )


def refused(
    counts: Mapping[str, int], documents: DocumentsConfig, config: TokenizerConfig
) -> str | None:
    """Return what a shard with these counts holds that the configs make an error, if anything.

    It may have been made when they set bad documents aside, or took a special token spelt in a
    text for plain text: its bytes are those of today, but today there is to be an error.
    """
    num_rejects, num_special = counts["num_rejects"], counts["num_special_tokens_in_text"]
    if not is_accepted(documents, num_rejects=num_rejects):
        return f"{num_rejects:,} in rejects.jsonl, more than documents.on_bad_document allows"
    if num_special and config.special_tokens_in_text == "error":
        return f"{num_special:,} special tokens spelt in texts, where that is an error"
    return None


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

    Raises: BadDocumentError, RawFileError, TokenizerError; EngineDiffersError where gigatoken
    turns out to be wrong on a document; CorruptOutputError where a file of the tokenizer is
    damaged.
    """
    require_special_ids(tokenizer, config)
    started = time.perf_counter()
    render = open_renderer(documents, tokenizer)

    of_text = config_of_text(config, documents)
    engine = open_shard_engine(tokenizer, of_text, is_parallel=is_parallel)
    writer = ShardWriter(raw, documents, config, tokenizer, folder, progress)
    batches = read_documents(
        raw.path, documents, batch_bytes=batch_bytes, on_reject=writer.reject, render=render
    )
    writer.write(engine, batches)
    check_unchanged(raw)
    seconds = time.perf_counter() - started
    manifest = Manifest(
        recipe=tokens_recipe(raw, documents, config, tokenizer),
        dataset=dataset,
        partition=raw.key,
        counts=dict(writer.counts),
        details=_details(config, tokenizer),
        files=writer.files(),
    )
    run = {
        "seconds": round(seconds, 3),
        "engine": engine.name,
        "engine_reason": engine.reason,
        "tokens_per_second": round(writer.counts["num_tokens"] / seconds),
        "megabytes_per_second": round(writer.counts["num_bytes"] / 1e6 / seconds, 2),
    }
    write_manifest(folder, manifest, run=run)


def config_of_text(config: TokenizerConfig, documents: DocumentsConfig) -> TokenizerConfig:
    """Return how the text of documents is encoded: a chat template writes control tokens in it."""
    if documents.messages is None:
        return config
    return config.model_copy(update={"special_tokens_in_text": "control"})


def open_shard_engine(
    tokenizer: Tokenizer, config: TokenizerConfig, *, is_parallel: bool | None = None
) -> GatedEngine:
    """Return the engine that `config` asks for, kept for the next shard.

    Raises: TokenizerError; CorruptOutputError where a file of the tokenizer is damaged.
    """
    check_files(tokenizer)
    in_text = in_text_of(config)
    return open_engine(tokenizer, choice=config.engine, in_text=in_text, is_parallel=is_parallel)


def in_text_of(config: TokenizerConfig) -> InText:
    """Return what a special token that is spelt in a text becomes, where that is no error."""
    return "control" if config.special_tokens_in_text == "control" else "ordinary"


def open_token_shard(stored: Stored) -> TokenShard:
    """Return a token shard that is in a store, its sizes checked against its manifest.

    Raises: CorruptOutputError.
    """
    folder = stored.folder
    check_sizes(folder, stored.manifest)
    shard = TokenShard(folder, stored.manifest)
    sizes = {TOKENS_NAME: shard.dtype.itemsize}
    sizes |= {LOSS_MASK_NAME: 1} if shard.has_loss_mask else {}
    for name, size in sizes.items():
        num_bytes = (folder / name).stat().st_size
        if num_bytes != shard.num_tokens * size:
            raise CorruptOutputError(
                where=folder / name,
                expected=f"{shard.num_tokens:,} tokens of {size} bytes "
                f"({shard.num_tokens * size:,} bytes)",
                found=f"{num_bytes:,} bytes",
                remedy="delete the folder and run `tokflow run` again",
            )
    return shard


def _details(config: TokenizerConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    has_eos, has_bos = config.eos == "last", config.bos == "first"
    return {
        "dtype": tokenizer.dtype.str,
        "vocab_size": tokenizer.vocab_size,
        "eos_id": tokenizer.eos_id if has_eos else None,
        "eos_token": tokenizer.eos_token if has_eos else None,
        "bos_id": tokenizer.bos_id if has_bos else None,
        "bos_token": tokenizer.bos_token if has_bos else None,
    }

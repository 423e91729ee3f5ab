"""Streams of tokens: an export of one, or a token store, as portions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tokflow.exports.damage import damaged_file
from tokflow.exports.format import Arrays, Portion, mapped_portion
from tokflow.exports.reading import Export
from tokflow.store.arrow import read_table, to_numpy
from tokflow.store.store import Stored, StoredOutput
from tokflow.tokens.shard import TokenShard, open_token_shard
from tokflow.tokens.writer import DOCUMENTS_NAME, LOSS_MASK_NAME, TOKENS_NAME


@dataclass(frozen=True, slots=True)
class Stream:
    """The tokens of a part, documents end to end."""

    output: Stored
    portions: Sequence[Portion]
    keeps: tuple[str, ...]
    """The fields that portions have: token_ids and, if it is kept, offsets."""
    has_loss_mask: bool
    """True where portions have loss_mask: of chats."""


def open_stream(output: StoredOutput, part: str | None) -> Stream:
    """Return the tokens of a part of a stream export, or those of a token store, where part is
    None. No token is read.

    Raises: ConfigError, MissingOutputError, CorruptOutputError, ForeignOutputError.
    """
    if part is None:
        return _of_shard(open_token_shard(output))
    output.store.check(output)
    return _of_export(Export(output), part)


def _of_export(export: Export, part: str) -> Stream:
    portions = export.portions(part)
    num_tokens, num_found = export.counts[f"{part}.num_tokens"], sum(of.num for of in portions)
    if num_found != num_tokens:
        expected = f"{num_tokens:,} tokens of {part}"
        raise damaged_file(export.folder, expected=expected, found=f"{num_found:,}")
    has_loss_mask = export.has_loss_mask(part)
    return Stream(export, portions, export.layout.keeps, has_loss_mask)


def _of_shard(shard: TokenShard) -> Stream:
    names = [shard.names(name) for name in (TOKENS_NAME, DOCUMENTS_NAME)]
    masks = shard.names(LOSS_MASK_NAME) if shard.has_loss_mask else [None] * len(shard.segments)
    portions = [
        replace(
            mapped_portion(
                counts["num_tokens"],
                partial(_fields, shard, tokens, documents, mask),
                *(shard.folder / name for name in (tokens, documents, mask) if name),
            ),
            store=shard.store,
        )
        for counts, tokens, documents, mask in zip(shard.segments, *names, masks, strict=True)
    ]
    return Stream(shard, portions, ("token_ids", "offsets"), shard.has_loss_mask)


def _fields(shard: TokenShard, tokens: str, documents: str, mask: str | None) -> Arrays:
    """Return the fields of a segment of a token store, memory-mapped but for the offsets."""
    numbers, folder = shard.store.numbers, shard.folder
    token_ids = numbers(folder / tokens, shard.dtype)
    table = read_table(shard.stored.file(documents), ["token_offset"])
    offsets = np.append(to_numpy(table["token_offset"]), len(token_ids))
    fields = {"token_ids": token_ids, "offsets": offsets}
    return fields | ({"loss_mask": numbers(folder / mask, np.bool_)} if mask else {})

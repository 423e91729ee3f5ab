"""Opening of exports and token stores: the arguments that rows are opened with, the portions of a
part, and what its output tells of its rows."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from tokflow.errors import ConfigError, MissingOutputError
from tokflow.exports import FORMATS
from tokflow.exports.damage import damaged_file
from tokflow.exports.format import Arrays, Portion
from tokflow.exports.reading import Export
from tokflow.loaders.kept_portions import KeptPortions
from tokflow.store.integrity import Stored
from tokflow.store.store import StoredOutput
from tokflow.store.stored_outputs import find_output
from tokflow.store.tables import read_table, to_numpy
from tokflow.tokens.shard import TokenShard, open_token_shard
from tokflow.tokens.shard_files import DOCUMENTS_NAME, LOSS_MASK_NAME, TOKENS_NAME

ROWS_VERSION = 1
"""Raised when the same tokens would give other rows."""

Tail: TypeAlias = Literal["pad", "drop"]
"""The last row of a stream, where it is not full: padded, or left out."""

MADE_FROM = {
    "input_ids": ("token_ids",),
    "labels": ("token_ids",),
    "segment_ids": ("offsets", "segment_ids"),
    "position_ids": ("offsets", "segment_ids", "position_ids"),
    "loss_mask": ("loss_mask",),
    "index": ("token_ids",),
}
"""Fields of rows in their order, and the fields of an export of which each needs one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The arguments of `open_rows`. A source of rows is pickled as these: without its tokens."""

    output: StoredOutput = field(repr=False, hash=False)
    part: str | None
    """The part; None of a token store, which has none."""
    sequence_length: int | None = None
    fields: tuple[str, ...] | None = None
    tail: Tail = "pad"
    across_documents: bool | None = None

    def fields_of(self, stored: Stored, keeps: Sequence[str]) -> tuple[str, ...]:
        """Return the fields of the rows: those asked for and the index, or all that there are.

        Raises: ConfigError for one that the output does not keep.
        """
        known = {name for name, needed in MADE_FROM.items() if {*needed} & {*keeps}}
        if "loss_mask" not in stored.manifest.details.get("lost", ()):
            known.add("loss_mask")  # every token is a loss token
        for name in self.fields or ():
            if name not in MADE_FROM:
                raise ConfigError(
                    where="fields",
                    expected=f"some of {', '.join(MADE_FROM)}",
                    found=repr(name),
                    remedy="name some of them",
                )
            if name not in known:
                raise lost(f"fields: {name}", stored, MADE_FROM[name])
        chosen = known if self.fields is None else {*self.fields, "index"}
        return tuple(name for name in MADE_FROM if name in chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRows:
    """The rows of one part of an export or a token store, in the order of their files.

    `gather(numbers)` returns rows in the order asked for, in arrays of their own, which the caller
    may change; several threads may ask at once.
    """

    opening: Opening
    stored: StoredOutput = field(repr=False, compare=False)
    fields: tuple[str, ...]
    """The names of what `gather` returns."""
    sequence_length: int
    """Inputs of a row."""
    across_documents: bool
    """The first token of a document is the label of the last of the document before it."""
    portions: KeptPortions = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """The export and the part, for people: `demo/exports/bin/train`."""
        manifest = self.stored.manifest
        if self.opening.part is None:
            return f"{manifest.dataset}/{manifest.stage}/{manifest.partition}"
        return f"{manifest.dataset}/exports/{self.stored.export_name}/{self.opening.part}"

    @property
    def fingerprint(self) -> str:
        """sha256 of what decides its rows: another content, part or length is another one."""
        output, part = self.stored.manifest.fingerprint, self.opening.part
        own = json.dumps([ROWS_VERSION, output, part, *self._decides])
        return hashlib.sha256(own.encode()).hexdigest()

    @property
    def _decides(self) -> list[Any]:
        """Values that decide the rows besides output and part."""
        return [self.across_documents]

    @property
    def cut(self) -> Mapping[str, Any]:
        """The arguments of `open_rows` that decide how rows are cut from the tokens, as JSON. The
        fingerprint has them too; these are for people."""
        return {"sequence_length": self.sequence_length, "across_documents": self.across_documents}

    @property
    def output(self) -> str:
        """The folder of its output in the store: the beginning of its fingerprint."""
        return self.stored.manifest.fingerprint[:16]

    @property
    def tokenizer(self) -> str:
        """The fingerprint of the tokenizer that made its tokens; empty where it is not known."""
        details, parents = self.stored.manifest.details, self.stored.manifest.parents
        return str(details.get("tokenizer_fingerprint") or parents.get("tokenizer", ""))


def find_part(
    path: str | Path | StoredOutput, part: str | None
) -> tuple[StoredOutput, str | None, bool]:
    """Return the output at a path or URL, the part of it that is named or the only one, None of a
    token store, and whether it holds packed rows.

    Raises: ConfigError, as `find_output`.
    """
    output = path if isinstance(path, StoredOutput) else find_output(path)
    if output.manifest.stage == "export":
        export = Export(output)
        is_only = part is None and len(export.parts) == 1
        export.check_part(name := export.parts[0] if is_only else part)
        return output, name, export.layout.is_packed
    if output.manifest.stage != "tokens":
        raise MissingOutputError(
            where=output.folder,
            expected="an export, or the tokens of a raw file",
            found=output.name,
            remedy="name the folder of one of them",
        )
    if part is not None:
        raise ConfigError(
            where=output.folder,
            expected="no part, for the tokens of a raw file are not split",
            found=repr(part),
            remedy="leave `part` out, or open an export",
        )
    return output, None, False


def portions_of(export: Export, part: str, count: str) -> Sequence[Portion]:
    """Return the portions of a part. Raises: CorruptOutputError where they have not together as
    many `tokens`, or `sequences`, as the manifest counts."""
    portions = export.portions(part)
    num, num_found = export.counts[f"{part}.num_{count}"], sum(of.num for of in portions)
    if num_found != num:
        expected = f"{num:,} {count} of {part}"
        raise damaged_file(export.folder, expected=expected, found=f"{num_found:,}")
    return portions


@dataclass(frozen=True, slots=True)
class Stream:
    """The tokens of a part, documents end to end."""

    output: StoredOutput
    portions: Sequence[Portion]
    keeps: tuple[str, ...]
    """The fields that portions have: token_ids and, if it is kept, offsets."""
    has_loss_mask: bool
    """Whether portions have loss_mask: of chats."""


def open_stream(output: StoredOutput, part: str | None) -> Stream:
    """Return the tokens of a part of a stream export, or those of a token store, where part is
    None. No token is read.

    Raises: ConfigError, MissingOutputError, CorruptOutputError, ForeignOutputError.
    """
    output.store.look_for([output.folder])  # this may be another process than opened it first
    if part is None:
        return _of_shard(open_token_shard(output))
    output.store.check(output)
    export = Export(output)
    portions = portions_of(export, part, "tokens")
    return Stream(export.stored, portions, export.layout.keeps, export.has_loss_mask(part))


def _of_shard(shard: TokenShard) -> Stream:
    names = [shard.names(name) for name in (TOKENS_NAME, DOCUMENTS_NAME)]
    masks = shard.names(LOSS_MASK_NAME) if shard.has_loss_mask else [None] * len(shard.segments)
    portions = [
        Portion(
            shard.stored,
            tuple(name for name in (tokens, documents, mask) if name),
            counts["num_tokens"],
            partial(_fields, shard, tokens, documents, mask),
            is_mapped=True,
        )
        for counts, tokens, documents, mask in zip(shard.segments, *names, masks, strict=True)
    ]
    return Stream(shard.stored, portions, ("token_ids", "offsets"), shard.has_loss_mask)


def _fields(shard: TokenShard, tokens: str, documents: str, mask: str | None) -> Arrays:
    """Return the fields of a segment of a token store, memory-mapped except the offsets."""
    token_ids = shard.stored.numbers(tokens, shard.dtype)
    table = read_table(shard.stored.file(documents), ["token_offset"])
    offsets = np.append(to_numpy(table["token_offset"]), len(token_ids))
    fields = {"token_ids": token_ids, "offsets": offsets}
    return fields | ({"loss_mask": shard.stored.numbers(mask, np.bool_)} if mask else {})


def lost(where: str, output: Stored, needed: Sequence[str]) -> ConfigError:
    """Return the error of an export that keeps no field of those needed: which formats do."""
    details = output.manifest.details
    is_packed = "sequence_length" in details
    formats = [
        name
        for name, of in FORMATS.items()
        if (layout := of.layout(of.options())).is_packed == is_packed
        and {*needed} & {*layout.keeps}
    ]
    return ConfigError(
        where=where,
        expected=f"an export that keeps {' or '.join(needed)}",
        found=f"{details['format']}, which loses that",
        remedy=f"leave it out, or open one of the formats {', '.join(formats)}, which keep it",
    )

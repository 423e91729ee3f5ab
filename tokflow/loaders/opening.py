"""The arguments that rows are opened with, and what can be told of rows from an output."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from tokflow.errors import ConfigError, MissingOutputError
from tokflow.exports import FORMATS
from tokflow.exports.reading import Export
from tokflow.store.store import Store, Stored, StoredOutput, export_name
from tokflow.store.stored_outputs import find_output, newest_output

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

    store: Store
    path: Path
    """The folder of one output, which never holds another."""
    part: str | None
    """None of a token store, which has no parts."""
    sequence_length: int | None = None
    fields: tuple[str, ...] | None = None
    tail: Tail = "pad"
    across_documents: bool | None = None

    @property
    def output(self) -> StoredOutput:
        """The output. Raises: as `find_output`."""
        return output_again(self.store, self.path)

    def name_of(self, output: Stored) -> str:
        """Return what people call the rows: `demo/exports/bin/train`."""
        manifest = output.manifest
        if self.part is None:
            return f"{manifest.dataset}/{manifest.stage}/{manifest.partition}"
        return f"{manifest.dataset}/exports/{export_name(output)}/{self.part}"

    def fingerprint_of(self, output: Stored, *decides: object) -> str:
        """Return the sha256 of what decides the rows: the output, the part and these."""
        own = [ROWS_VERSION, output.manifest.fingerprint, self.part, *decides]
        return hashlib.sha256(json.dumps(own).encode()).hexdigest()

    def fields_of(self, output: Stored, keeps: Sequence[str]) -> tuple[str, ...]:
        """Return the fields of the rows: those asked for and the index, or all that there are.

        Raises: ConfigError for one that the output does not keep.
        """
        told = {name for name, needed in MADE_FROM.items() if {*needed} & {*keeps}}
        if "loss_mask" not in output.manifest.details.get("lost", ()):
            told.add("loss_mask")  # every token is a loss token
        for name in self.fields or ():
            if name not in MADE_FROM:
                raise ConfigError(
                    where="fields",
                    expected=f"some of {', '.join(MADE_FROM)}",
                    found=repr(name),
                    remedy="name some of them",
                )
            if name not in told:
                raise lost(f"fields: {name}", output, MADE_FROM[name])
        chosen = told if self.fields is None else {*self.fields, "index"}
        return tuple(name for name in MADE_FROM if name in chosen)


def find_part(
    path: str | Path | StoredOutput, part: str | None
) -> tuple[StoredOutput, str | None, bool]:
    """Return the output at a path or URL, the part of it that is named or the only one, None of a
    token store, and whether it holds packed rows.

    Raises: ConfigError, as `find_output`.
    """
    output = path if isinstance(path, StoredOutput) else _named(path)
    if output.manifest.stage != "tokens":
        output.store.check(output)
        export = Export(output)
        is_only = part is None and len(export.parts) == 1
        export.check_part(name := export.parts[0] if is_only else part)
        return output, name, export.layout.is_packed
    if part is not None:
        raise ConfigError(
            where=output.folder,
            expected="no part, for the tokens of a raw file are not split",
            found=repr(part),
            remedy="leave `part` out, or open an export",
        )
    return output, None, False


def output_again(store: Store, folder: Path) -> StoredOutput:
    """Return an output that was opened before, maybe elsewhere. Raises: as `Store.read`."""
    store.look_for([folder])
    return store.read(folder)


def _named(path: str | Path) -> StoredOutput:
    """Return the output at a path. Raises: as `find_output`, which says what is beside it."""
    try:
        return find_output(path)
    except MissingOutputError as error:
        expected = "the folder of an export, or of the tokens of a raw file"
        raise MissingOutputError(**{**error.fields(), "expected": expected}) from None


def tokenizer_of(output: Stored) -> str:
    """Return the fingerprint of the tokenizer that made the tokens; empty where it is not known."""
    details, parents = output.manifest.details, output.manifest.parents
    return str(details.get("tokenizer_fingerprint") or parents.get("tokenizer", ""))


def lost(where: str, output: Stored, needed: Sequence[str]) -> ConfigError:
    """Return the error of an export that keeps no field of those needed: who keeps them."""
    details = output.manifest.details
    is_packed = "sequence_length" in details
    formats = [
        name
        for name, of in FORMATS.items()
        if (layout := of.layout(of.options())).is_packed == is_packed
        and {*needed} & {*layout.keeps}
    ]
    of_format = f"one of the formats {', '.join(formats)}"
    beside = [
        str(of.folder.parent)
        for of in _exports_beside(output)
        if ("sequence_length" in of.manifest.details) == is_packed
        and {*needed} & {*of.manifest.details.get("keeps", ())}
    ]
    return ConfigError(
        where=where,
        expected=f"an export that keeps {' or '.join(needed)}",
        found=f"{details['format']}, which loses that",
        remedy=f"leave it out, or open one that keeps it: {', or '.join([*beside, of_format])}",
    )


def _exports_beside(output: Stored) -> list[StoredOutput]:
    """Return the newest export of each name in the dataset; none where `output` lies elsewhere."""
    folder = output.folder.parents[1]
    names = sorted(folder.iterdir()) if folder.name == "exports" else []
    found = filter(None, (newest_output(output.store, of) for of in names))
    return [of for of in found if of.manifest.dataset == output.manifest.dataset]

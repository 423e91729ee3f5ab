"""Rows that were packed, as they lie in an export."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.errors import ConfigError
from tokflow.exports import INDEX_NAME
from tokflow.exports.columns import NO_LABEL, positions_of
from tokflow.exports.format import Arrays, Portion
from tokflow.exports.index import read_sizes
from tokflow.exports.reading import Export
from tokflow.loaders.opening import KeptPortions, OpenedRows, Opening, lost, portions_of
from tokflow.loaders.samples import Batch, FilesOf, Numbers, copied, empty, grouped
from tokflow.sequences.config import PackingConfig


def open_packed_rows(opening: Opening) -> "PackedRows":
    """Return the rows of an export of sequences. Raises: ConfigError, CorruptOutputError."""
    output, part = opening.output, opening.part or ""
    output.store.look_for([output.folder])  # this may be another process than opened it first
    output.store.check(output)
    export = Export(output).of_part(part)
    keeps = export.layout.keeps
    if opening.across_documents is False and "segment_ids" not in keeps:
        raise lost("across_documents", export, ["segment_ids"])
    stored_length = int(export.manifest.details["sequence_length"])
    packing = PackingConfig(**export.manifest.config["packing"])
    length = stored_length - packing.of_part(part).label_token
    _check_cut(opening, export, length)
    sizes, num_tokens = _sizes(export, part, length)
    fields = opening.fields_of(export, keeps)
    needs = _needed(fields, keeps)
    return PackedRows(
        opening=opening,
        stored=export.stored,
        fields=fields,
        needs=needs,
        sequence_length=length,
        stored_length=stored_length,
        across_documents=opening.across_documents is True,
        num_tokens=num_tokens,
        sizes=sizes,
        is_padded_left=_is_padded_left(export),
        portions=KeptPortions(_portions(export.with_fields(needs), part)),
    )


def _sizes(export: Export, part: str, length: int) -> tuple[npt.NDArray[np.int32] | None, int]:
    """Return the tokens of each row, where nothing else tells them from padding; and those of all
    rows, of which a last one that is a label alone is none."""
    keeps, num_tokens = export.layout.keeps, export.counts[f"{part}.num_tokens"]
    num_rows = export.counts[f"{part}.num_sequences"]
    stored: int = export.manifest.details["sequence_length"]
    is_full, is_padded_left = num_tokens == num_rows * stored, _is_padded_left(export)
    is_told = is_full or "segment_ids" in keeps or ("loss_mask" in keeps and not is_padded_left)
    if is_told and (is_full or is_padded_left or stored == length):
        return None, num_tokens - num_rows * (stored - length)
    sizes = read_sizes(export.stored.file(INDEX_NAME), part, num_rows, stored)
    num_labels = np.count_nonzero(sizes == stored) if not is_padded_left else num_rows
    return None if is_told else sizes, num_tokens - int(num_labels) * (stored - length)


def _is_padded_left(export: Export) -> bool:
    return bool(export.manifest.details.get("padding_side") == "left")


def _needed(fields: Collection[str], keeps: Collection[str]) -> frozenset[str]:
    """Return the fields of an export that fields of rows are made from."""
    needed = {"token_ids"} | ({"segment_ids", "position_ids"} & {*fields})
    if {"labels", "loss_mask"} & {*fields}:
        needed |= {"segment_ids", "loss_mask"}
    if "position_ids" in needed and "position_ids" not in keeps:
        needed.add("segment_ids")
    return frozenset(needed)


def _portions(export: Export, part: str) -> Sequence[Portion]:
    return [
        of if of.is_mapped else replace(of, load=partial(_narrowed, of.load, export))
        for of in portions_of(export, part, "sequences")
    ]


def _narrowed(load: Callable[[], Arrays], export: Export) -> Arrays:
    """Return fields in the smallest types that hold them, for more of them are kept so."""
    length, fields = export.manifest.details["sequence_length"], load()
    small = np.dtype(np.uint16 if length < 2**16 else np.int32)
    types = {"token_ids": export.dtype, "segment_ids": small, "position_ids": small}
    return {
        name: values.astype(types.get(name, values.dtype), copy=False)
        for name, values in fields.items()
    }


def _check_cut(opening: Opening, export: Export, length: int) -> None:
    """Make sure that rows are asked for as they were packed. Raises: ConfigError."""
    if opening.sequence_length not in (None, length):
        raise ConfigError(
            where="sequence_length",
            expected=f"{length:,}, the inputs of rows of {export.format_name}, which were packed",
            found=repr(opening.sequence_length),
            remedy="leave it out; or open an export of a stream (bin, npy, megatron), which is cut "
            "into rows of any length; or pack rows of another",
        )
    if opening.tail != "pad":
        raise ConfigError(
            where="tail",
            expected=f"none for rows of {export.format_name}, which were packed",
            found=repr(opening.tail),
            remedy="leave it out; packing has a `tail:` of its own",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows(OpenedRows):
    """A row of L tokens has L inputs and no label for its last; where the packing has a label token
    it has L - 1 inputs, and a label for each. A label is of the same segment as its input.

    Of a row of two documents and padding:

        token_ids    [a b c d . .]    segment_ids  [1 1 2 2 0 0]
        labels       [b x d x x x]    x is -100

    Where the export has lost the segments, labels go on from one document to the next.
    """

    needs: frozenset[str]
    """Fields of the export that those of rows are made from."""
    stored_length: int
    """L"""
    num_tokens: int
    sizes: npt.NDArray[np.int32] | None = field(repr=False, compare=False)
    """Tokens of each row, where nothing else tells them from padding."""
    is_padded_left: bool

    def __reduce__(self) -> tuple[Any, ...]:
        return open_packed_rows, (self.opening,)

    def __len__(self) -> int:
        return int(self.portions.edges[-1])

    def gather(self, numbers: Numbers) -> Batch:
        """Return the rows of these numbers; see `OpenedRows`."""
        length = self.sequence_length
        self.portions.fetch(numbers)
        stored = self._taken(numbers)
        batch: Batch = {
            "input_ids": copied(stored["token_ids"][:, :length], np.int64),
            "index": numbers.copy(),
        }
        if {"labels", "loss_mask"} & {*self.fields}:
            batch["labels"], batch["loss_mask"] = self._labels(stored, numbers)
        for name in {"segment_ids", "position_ids"} & {*self.fields}:
            values = stored[name] if name in stored else positions_of(stored["segment_ids"])
            batch[name] = copied(values[:, :length], np.int32)
        return {name: batch[name] for name in self.fields}

    def remote_files(self) -> FilesOf | None:
        """Return what tells the files of rows at a URL; None where all are on this disk."""
        return self.portions.files_of if self.portions.is_remote else None

    def _taken(self, numbers: Numbers) -> Arrays:
        """Return the fields of rows that are needed as they are stored, (num_rows, L) each."""
        taken: Arrays = {}
        # A portion that has to be decoded is decoded once.
        for number, here in grouped(self.portions.of(numbers)):
            rows = numbers[here] - self.portions.edges[number]
            fields = self.portions[number]
            for name in fields.keys() & self.needs:
                if name not in taken:
                    taken[name] = empty((len(numbers), self.stored_length), fields[name].dtype)
                taken[name][here] = fields[name][rows]
        none = np.empty((0, self.stored_length), np.int32)
        return taken or dict.fromkeys(("token_ids", "segment_ids", "position_ids"), none)

    def _labels(
        self, stored: Arrays, numbers: Numbers
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the labels, and which of them count."""
        shape, last = (len(numbers), self.sequence_length), self.stored_length - 1
        labels, counts = empty(shape, np.int64), empty(shape, np.bool_)
        labels.fill(NO_LABEL)
        counts.fill(False)
        counts[:, :last] = self._is_label(stored, numbers)
        np.copyto(labels[:, :last], stored["token_ids"][:, 1:], where=counts[:, :last])
        return labels, counts

    def _is_label(self, stored: Arrays, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Return whether each stored token but the first is the label of the one before it."""
        found = np.ones((len(numbers), self.stored_length - 1), dtype=np.bool_)
        if "segment_ids" in stored:
            before, behind = stored["segment_ids"][:, :-1], stored["segment_ids"][:, 1:]
            found &= behind != 0
            found &= before != 0 if self.across_documents else before == behind
        elif self.sizes is not None:
            column, sizes = np.arange(1, self.stored_length), self.sizes[numbers, None]
            found &= column > self.stored_length - sizes if self.is_padded_left else column < sizes
        if "loss_mask" in stored:
            found &= stored["loss_mask"][:, 1:]
        return found

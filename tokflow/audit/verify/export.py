"""Is an export what it says it is, and what it was made from."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.audit.verify.expected import NAMES, Expected, expected_fields
from tokflow.audit.verify.index import compare_index, index_problems
from tokflow.audit.verify.problems import TOKENS_AT_ONCE, too_large, unequal
from tokflow.exports import Arrays, Export, Layout, Part
from tokflow.store.manifest import Manifest


def verify_export(
    folder: Path, manifest: Manifest, parts: Sequence[Part] | None = None
) -> list[str]:
    """Return what is wrong with an export.

    The index leads to every token once; the files, read through the format's own reader, hold as
    many tokens as the manifest says, with ids below vocab_size. With `parts`, what it was made
    from: written + dropped is the parts' tokens, the index leads to the documents they have, and
    every field that the format keeps has the values that they have. A format without a reader is
    compared by its counts alone.
    """
    problems: list[str] = []
    for name in manifest.details["parts"]:
        problems += _export_counts(folder, manifest, name)
        problems += index_problems(folder, manifest, name)
    for part in parts or ():
        dropped = manifest.counts[f"{part.name}.num_dropped_tokens"]
        written = manifest.counts[f"{part.name}.num_tokens"]
        repeated = manifest.counts.get(f"{part.name}.num_repeated_tokens", 0)
        problems += unequal(
            f"{folder}: {part.name}: written once and dropped",
            num_tokens=(part.num_tokens, written - repeated + dropped),
        )
    if parts and not problems:
        problems += compare_index(folder, Export(folder, manifest).layout, parts)
    by_name = {part.name: part for part in parts or ()}
    for name in manifest.details["parts"]:
        problems += _read_problems(folder, manifest, name, by_name.get(name))
    return problems


def _export_counts(folder: Path, manifest: Manifest, part: str) -> Iterator[str]:
    counts = manifest.counts
    if f"{part}.num_sequences" not in counts:
        return
    slots = counts[f"{part}.num_sequences"] * manifest.details["sequence_length"]
    filled = counts[f"{part}.num_tokens"] + counts[f"{part}.num_padding"]
    yield from unequal(f"{folder}: {part}: tokens and padding", num_tokens=(slots, filled))


def _read_problems(folder: Path, manifest: Manifest, name: str, part: Part | None) -> Iterator[str]:
    """Read a part as its users do and compare every field with `part`."""
    export = Export(folder, manifest)
    if not export.is_read:
        return
    where = f"{folder}: {name}"
    layout = export.layout
    compared = _Compared(where, manifest, layout, part)
    for fields in export.read(name):
        yield from compared.problems(fields)
    yield from compared.rest()
    counts = manifest.counts
    num_tokens = compared.num_tokens
    if layout.is_packed and "segment_ids" not in layout.keeps:
        num_tokens -= counts[f"{name}.num_padding"]  # the files do not tell: believe the manifest
    yield from unequal(where, num_tokens=(counts[f"{name}.num_tokens"], num_tokens))
    for what, found in (
        ("num_loss_tokens", compared.num_loss_tokens),
        ("num_documents", compared.num_documents),
    ):
        if (expected := counts.get(f"{name}.{what}")) is not None:
            yield from unequal(where, **{what: (expected, found)})


class _Compared:
    """Compares what is read of one part with what it was made from, as both go on."""

    def __init__(self, where: str, manifest: Manifest, layout: Layout, part: Part | None) -> None:
        self._where = where
        self._vocab_size = manifest.details["vocab_size"]
        self._pad_id = manifest.details.get("pad_id", -1)
        """May be an id that no token has."""
        self._position = 0
        self.num_tokens = 0
        self.num_loss_tokens = 0
        self.num_documents = 0
        self._expected: dict[str, Expected] = {}
        if part is not None:
            self._expected = expected_fields(layout, part)

    def problems(self, fields: Arrays) -> Iterator[str]:
        """Yield what is wrong with the next fields of the part."""
        token_ids = fields["token_ids"].reshape(-1)
        segment_ids = fields.get("segment_ids")
        is_padding = token_ids == self._pad_id if segment_ids is None else segment_ids == 0
        yield from too_large(
            self._where, np.where(is_padding.reshape(-1), 0, token_ids), self._vocab_size
        )
        self.num_tokens += (
            len(token_ids) if segment_ids is None else int(np.count_nonzero(segment_ids))
        )
        self.num_loss_tokens += int(np.count_nonzero(fields.get("loss_mask", ())))
        for name, values in fields.items():
            if name == "offsets":
                yield from self._lengths(values, len(token_ids))
            else:
                yield from self._differences(name, values.reshape(-1), self._position)
        self._position += len(token_ids)

    def rest(self) -> Iterator[str]:
        """Yield a sentence for each field of which the part has more than the files."""
        for name, expected in self._expected.items():
            if len(expected.next(1)):
                yield f"{self._where}: expected more {NAMES[name]}s, found the end of the files"

    def _lengths(self, offsets: npt.NDArray[np.int64], num_tokens: int) -> Iterator[str]:
        yield from unequal(f"{self._where}: offsets", last=(num_tokens, int(offsets[-1])))
        yield from self._differences("offsets", np.diff(offsets), self.num_documents)
        self.num_documents += len(offsets) - 1

    def _differences(self, name: str, flat: npt.NDArray[Any], position: int) -> Iterator[str]:
        """Yield the first value that is not the one of the part."""
        for start in range(0, len(flat), TOKENS_AT_ONCE):
            if name not in self._expected:
                return
            found = flat[start : start + TOKENS_AT_ONCE]
            wanted = self._expected[name].next(len(found))
            if len(wanted) != len(found) or (wanted != found).any():
                size = min(len(wanted), len(found))
                wrong = np.flatnonzero(wanted[:size] != found[:size])
                at = position + start + (int(wrong[0]) if len(wrong) else size)
                yield f"{self._where}: {NAMES[name]} {at:,} is not the one of the split"
                del self._expected[name]

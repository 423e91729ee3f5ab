"""Is an export what it says it is, and what it was made from."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tokflow.exports import FORMATS, INDEX_NAME, Arrays, Part
from tokflow.manifest import Manifest
from tokflow.tables import read_part
from tokflow.verify.problems import TOKENS_AT_ONCE, too_large, unequal


def verify_export(
    folder: Path, manifest: Manifest, parts: Sequence[Part] | None = None
) -> list[str]:
    """Return what is wrong with an export.

    The index leads to every token once; the files, read through the format's own reader, hold as
    many tokens as the manifest says, with ids below vocab_size. With `parts`, what it was made
    from: written + dropped is the parts' tokens, and every token that was read is the one that
    the parts have; so is, of chats, every value of the loss mask where the format keeps it. A
    format without a reader is compared by its counts alone.
    """
    problems: list[str] = []
    for name in manifest.details["parts"]:
        problems += _export_counts(folder, manifest, name)
        problems += _index_problems(folder, manifest, name)
    for part in parts or ():
        dropped = manifest.counts[f"{part.name}.num_dropped_tokens"]
        written = manifest.counts[f"{part.name}.num_tokens"]
        problems += unequal(
            f"{folder}: {part.name}: written and dropped",
            num_tokens=(part.num_tokens, written + dropped),
        )
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


def _index_problems(folder: Path, manifest: Manifest, part: str) -> Iterator[str]:
    columns = read_part(folder / INDEX_NAME, part, ["position", "num_tokens"])
    start, size = columns["position"], columns["num_tokens"]
    where = f"{folder / INDEX_NAME}: {part}"
    num_tokens = manifest.counts[f"{part}.num_tokens"]
    if len(wrong := np.flatnonzero(start[1:] < (start + size)[:-1])):
        yield f"{where}: expected runs that do not overlap, found one at {start[wrong[0] + 1]:,}"
    yield from unequal(where, num_tokens=(num_tokens, int(size.sum())))


def _read_problems(folder: Path, manifest: Manifest, name: str, part: Part | None) -> Iterator[str]:
    """Read a part as its users do, shard after shard, and compare it with `part`."""
    read = FORMATS[manifest.details["format"]].read
    if read is None:
        return
    compared = _Compared(folder, manifest, name, part)
    for manifest_of_shard in _shards(manifest, name):
        yield from compared.problems(read(folder, manifest_of_shard, name))
    yield from unequal(
        f"{folder}: {name}",
        num_tokens=(manifest.counts[f"{name}.num_tokens"], compared.num_tokens),
    )
    if (num_loss_tokens := manifest.counts.get(f"{name}.num_loss_tokens")) is not None:
        yield from unequal(
            f"{folder}: {name}", num_loss_tokens=(num_loss_tokens, compared.num_loss_tokens)
        )


def _shards(manifest: Manifest, part: str) -> Iterator[Manifest]:
    """Yield the manifest cut to one shard of the part at a time, so that each fits in memory.

    Files called `<part>-<i>-of-<n>` are shards; any other format is read as a whole.
    """
    pattern = re.compile(rf"{re.escape(part)}-\d+-of-\d+")
    matches = {name: match for name in sorted(manifest.files) if (match := pattern.match(name))}
    if not matches:
        yield manifest
    for _, names in groupby(matches, key=lambda name: matches[name].group()):
        yield replace(manifest, files={name: manifest.files[name] for name in names})


class _Compared:
    """Compares what is read of one part with what it was made from, as both go on."""

    def __init__(self, folder: Path, manifest: Manifest, name: str, part: Part | None) -> None:
        self._where = f"{folder}: {name}"
        self._manifest = manifest
        self._position = 0
        self.num_tokens = 0
        self.num_loss_tokens = 0
        self._expected: dict[str, _Expected] = {}
        if part is not None:
            self._expected["token"] = _Expected(_runs(manifest, part, "token_ids"))
            if part.has_loss_mask:
                self._expected["loss mask of token"] = _Expected(_runs(manifest, part, "loss_mask"))

    def problems(self, fields: Arrays) -> Iterator[str]:
        """Yield what is wrong with the next fields of the part."""
        token_ids = fields["token_ids"]
        flat = token_ids.reshape(-1)
        segment_ids = fields.get("segment_ids")
        self.num_tokens += (
            len(flat) if token_ids.ndim == 1 else self._num_tokens(token_ids, segment_ids)
        )
        yield from too_large(self._where, flat, self._manifest.details["vocab_size"])
        yield from self._differences("token", flat)
        if (mask := fields.get("loss_mask")) is not None:
            self.num_loss_tokens += int(np.count_nonzero(mask))
            yield from self._differences("loss mask of token", mask.reshape(-1))
        self._position += len(flat)

    def _differences(self, name: str, flat: npt.NDArray[Any]) -> Iterator[str]:
        """Yield the first value that is not the one of the part."""
        for start in range(0, len(flat), TOKENS_AT_ONCE):
            if name not in self._expected:
                return
            found = flat[start : start + TOKENS_AT_ONCE]
            wanted = self._expected[name].next(len(found))
            if len(wanted) != len(found) or (wanted != found).any():
                size = min(len(wanted), len(found))
                wrong = np.flatnonzero(wanted[:size] != found[:size])
                at = self._position + start + (int(wrong[0]) if len(wrong) else size)
                yield f"{self._where}: {name} {at:,} is not the one of the split"
                del self._expected[name]

    def _num_tokens(self, token_ids: npt.NDArray[Any], segment_ids: Any) -> int:
        """Return how many are no padding; where the files do not tell, believe the manifest."""
        if segment_ids is not None:
            return int(np.count_nonzero(segment_ids))
        part = self._where.rpartition(": ")[2]
        return int(token_ids.size) - self._manifest.counts[f"{part}.num_padding"]


def _runs(
    manifest: Manifest, part: Part, field: Literal["token_ids", "loss_mask"]
) -> Iterator[npt.NDArray[Any]]:
    """Yield what the files of an export must hold for each token, padding included."""
    format_ = FORMATS[manifest.details["format"]]
    if format_.made_of == "stream":
        yield from part.stream() if field == "token_ids" else part.stream_loss_mask()
        return
    min_tokens = format_.min_tokens(format_.options(**manifest.config["options"]))
    num_rows = max(1, TOKENS_AT_ONCE // part.sequence_length)
    for rows in part.sequences(num_rows, min_tokens=min_tokens):
        yield getattr(rows, field).reshape(-1)


class _Expected:
    """Runs of values, taken in pieces of any size."""

    def __init__(self, runs: Iterator[npt.NDArray[Any]]) -> None:
        self._runs = runs
        self._rest: npt.NDArray[Any] | None = None

    def next(self, size: int) -> npt.NDArray[Any]:
        """Return the next `size` values, or fewer at the end."""
        taken: list[npt.NDArray[Any]] = []
        while size:
            run = self._rest if self._rest is not None else next(self._runs, None)
            if run is None:
                break
            taken.append(run[:size])
            self._rest = run[size:] if len(run) > size else None
            size -= len(taken[-1])
        return np.concatenate(taken) if taken else np.zeros(0, dtype=np.uint32)

"""One export written whole: the files of its format, its index, its manifest."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokflow.errors import CorruptOutputError
from tokflow.exports.columns import Padding, num_written_padding
from tokflow.exports.config import ExportConfig, export_named
from tokflow.exports.export_segments import ExportSegment, fetching, join_files, taken_counts
from tokflow.exports.format import Layout
from tokflow.exports.formats import FORMATS
from tokflow.exports.index import INDEX_NAME, write_index
from tokflow.exports.kept import kept_of
from tokflow.exports.new_files import take_hashed
from tokflow.exports.part import Part
from tokflow.sequences.config import Side, one_or_each
from tokflow.store.manifest import Manifest, Recipe, checksums, write_manifest
from tokflow.store.store import StoredOutput


def write_export(
    parts: Sequence[Part],
    config: ExportConfig,
    folder: Path,
    *,
    dataset: str,
    recipe: Recipe,
    details: Mapping[str, Any],
    segment: ExportSegment | None = None,
) -> None:
    """Write one export with its index, or a segment of it, into the empty `folder`, manifest last.

    Raises: CorruptOutputError where a file that the parts are read from is damaged; ConfigError
    where the format cannot hold them.
    """
    started = time.perf_counter()
    with export_named(config), fetching(parts, segment):
        counts = _write_files(parts, config, folder, segment)
    manifest = Manifest(
        recipe=segment.recipe if segment else recipe,
        dataset=dataset,
        partition=None,
        counts=counts,
        details=_details(parts, config, details),
        files=checksums(folder, known=take_hashed(folder)),
    )
    write_manifest(folder, manifest, run={"seconds": round(time.perf_counter() - started, 3)})


def join_export(
    parts: Sequence[Part],
    config: ExportConfig,
    segments: Sequence[StoredOutput],
    folder: Path,
    *,
    dataset: str,
    recipe: Recipe,
    details: Mapping[str, Any],
) -> None:
    """Make an export of its segments in the empty `folder`, manifest last.

    Raises: CorruptOutputError where a file of them is damaged.
    """
    files = join_files(segments, config, folder)
    with export_named(config):
        counted = [replace(part, taken=taken_counts(segments, part.name)) for part in parts]
        counts = _counts_of_all(counted, config)
    manifest = Manifest(
        recipe=recipe,
        dataset=dataset,
        partition=None,
        counts=counts,
        details=_details(parts, config, details),
        files=files,
    )
    seconds = sum(segment.run().get("seconds", 0) for segment in segments)
    write_manifest(folder, manifest, run={"seconds": round(seconds, 3)})


def _write_files(
    parts: Sequence[Part], config: ExportConfig, folder: Path, segment: ExportSegment | None
) -> dict[str, int]:
    """Write the files of an export, or of a segment; return the counts of its manifest."""
    names = FORMATS[config.format].file_names(config.options, [part.name for part in parts])
    counted = [replace(part, file_name=names[part.name], taken=Counter()) for part in parts]
    if segment is not None and segment.part is not None:
        [part] = [part for part in counted if part.name == segment.part]
        _write_parts([replace(part, within=segment.within)], config, folder)
        return {f"{part.name}.{name}": num for name, num in (part.taken or {}).items()}
    if segment is None:
        _write_parts(counted, config, folder)
    kept = kept_of(parts[0])
    write_index(folder / INDEX_NAME, (index_of(part, config.layout) for part in parts), kept.names)
    return {} if segment else _counts_of_all(counted, config)


def _write_parts(parts: Sequence[Part], config: ExportConfig, folder: Path) -> None:
    format_ = FORMATS[config.format]
    written = [part for part in parts if _is_some(part, config.layout)]
    for part in written:
        format_.write(part, config.options, folder)
    if written:
        format_.finish(written, config.options, folder)


def _details(
    parts: Sequence[Part], config: ExportConfig, details: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a reader must know of the files."""
    layout = config.layout
    has_loss_mask = any(part.has_loss_mask for part in parts)
    is_lost = has_loss_mask and "loss_mask" not in layout.keeps
    packed: dict[str, Any] = {
        "sequence_length": one_or_each({part.name: part.sequence_length for part in parts}),
        "pad_id": one_or_each({part.name: part.pad_id for part in parts}),
    }
    sides: dict[str, Side] = {part.name: part.packing.padding_side for part in parts}
    if "left" in sides.values():
        packed["padding_side"] = one_or_each(sides)
    return {
        **details,
        "format": config.format,
        "parts": [part.name for part in parts],
        "keeps": list(layout.keeps),
        **({"lost": ["loss_mask"]} if is_lost else {}),
        **(packed if layout.is_packed else {}),
    }


def _is_some(part: Part, layout: Layout) -> bool:
    """Say whether a part has a file at all: a part without tokens, or sequences, has none."""
    return bool(part.num_sequences if layout.is_packed else part.num_tokens)


def _counts_of_all(parts: Sequence[Part], config: ExportConfig) -> dict[str, int]:
    counts: dict[str, int] = {}
    for part in parts:
        counts |= _counts(part, config.layout, config)
    return counts


def _counts(part: Part, layout: Layout, config: ExportConfig) -> dict[str, int]:
    """Return how much of a part was written, and what was left out.

    num_tokens: padding not counted. num_dropped_tokens. Of sequences num_sequences, num_padding
    (as much as the files have of it), num_repeated_tokens (in another sequence too) and the fields
    of PackingCounts. Of chats, where the format keeps the loss mask, num_loss_tokens; where it
    keeps offsets, num_documents.

    Raises: CorruptOutputError where a token was neither written nor dropped as the config says.
    """
    taken = part.taken or Counter()
    counts = {"num_tokens": taken["num_tokens"], "num_dropped_tokens": 0}
    if layout.is_packed:
        padding: Padding = getattr(config.options, "padding", "max")
        counts |= {
            "num_sequences": part.num_sequences,
            "num_padding": num_written_padding(part, padding, taken["num_tokens"]),
            "num_repeated_tokens": part.packed.num_repeated_tokens,
            **asdict(part.packed.packing_counts),
        }
    if "offsets" in layout.keeps:
        num_empty = taken["num_empty_documents"] if layout.leaves_out_empty else 0
        counts["num_documents"] = taken["num_documents"] - num_empty
    if part.has_loss_mask and "loss_mask" in layout.keeps:
        counts["num_loss_tokens"] = taken["num_loss_tokens"]
    once = counts["num_tokens"] - counts.get("num_repeated_tokens", 0)
    dropped = counts["num_dropped_tokens"]
    if once + dropped != part.num_tokens or dropped < 0:
        raise CorruptOutputError(
            where=f"export {config.name}: {part.name}",
            expected=f"{part.num_tokens:,} tokens, as in the split",
            found=f"{once:,} written and {dropped:,} dropped",
            remedy="run `tokflow verify` on the dataset, and delete what is damaged",
        )
    return {f"{part.name}.{name}": num for name, num in counts.items()}


def index_of(part: Part, layout: Layout) -> Iterator[pa.Table]:
    """Yield the index of a part in the order of the files' tokens, with the columns that are kept
    of each document."""
    if layout.is_packed:
        return kept_of(part).added(part.packed.index())
    return kept_of(part).added(part.stream_index(eos_first=layout.eos_first))

"""One export written whole: the files of its format, its index, its manifest."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokflow.errors import CorruptOutputError
from tokflow.exports.config import ExportConfig, export_named, export_recipe
from tokflow.exports.format import Layout
from tokflow.exports.formats import FORMATS
from tokflow.exports.index import INDEX_NAME, write_index
from tokflow.exports.new_files import take_hashed
from tokflow.exports.part import Part, inputs_of
from tokflow.store.integrity import checked
from tokflow.store.manifest import Manifest, checksums, write_manifest


def write_export(
    parts: Sequence[Part],
    config: ExportConfig,
    folder: Path,
    *,
    dataset: str,
    parents: Mapping[str, str],
    details: Mapping[str, Any],
) -> None:
    """Write one export with its index into the empty `folder`, manifest last.

    Raises: CorruptOutputError where a file that the parts are read from is damaged; ConfigError
    where the format cannot hold them.
    """
    started = time.perf_counter()
    format_, layout = FORMATS[config.format], config.layout
    with export_named(config), checked(*inputs_of(parts)):
        names = format_.file_names(config.options, [part.name for part in parts])
        counted = [replace(part, file_name=names[part.name], taken=Counter()) for part in parts]
        written = [part for part in counted if _is_some(part, layout)]
        for part in written:
            format_.write(part, config.options, folder)
        if written:
            format_.finish(written, config.options, folder)
        counts: dict[str, int] = {}
        for part in counted:
            counts |= _counts(part, layout, config)
        write_index(folder / INDEX_NAME, (index_of(part, layout) for part in parts))
    manifest = Manifest(
        recipe=export_recipe(config, parts[0].packing, parents),
        dataset=dataset,
        partition=None,
        counts=counts,
        details={**details, "format": config.format, **_details(parts, layout, details)},
        files=checksums(folder, known=take_hashed(folder)),
    )
    write_manifest(folder, manifest, run={"seconds": round(time.perf_counter() - started, 3)})


def _details(parts: Sequence[Part], layout: Layout, details: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a reader must know of the files."""
    lost = _lost(parts, layout, details)
    packed = {"sequence_length": parts[0].sequence_length, "pad_id": parts[0].pad_id}
    return {
        "parts": [part.name for part in parts],
        "keeps": list(layout.keeps),
        **({"lost": lost} if lost else {}),
        **(packed if layout.is_packed else {}),
    }


def _is_some(part: Part, layout: Layout) -> bool:
    """Say whether a part has a file at all: a part without tokens, or sequences, has none."""
    return bool(part.num_sequences if layout.is_packed else part.num_tokens)


def _counts(part: Part, layout: Layout, config: ExportConfig) -> dict[str, int]:
    """Return how much of a part was written, and what was left out.

    num_tokens: padding not counted. num_dropped_tokens. Of sequences num_sequences, num_padding,
    num_repeated_tokens (in another sequence too) and the fields of PackingCounts. Of chats, where
    the format keeps the loss mask, num_loss_tokens; where it keeps offsets, num_documents.

    Raises: CorruptOutputError where a token was neither written nor dropped as the config says.
    """
    taken = part.taken or Counter()
    counts = {"num_tokens": taken["num_tokens"], "num_dropped_tokens": 0}
    if layout.is_packed:
        num_slots = part.num_sequences * part.sequence_length
        counts |= {
            "num_sequences": part.num_sequences,
            "num_padding": num_slots - taken["num_tokens"],
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


def _lost(parts: Sequence[Part], layout: Layout, details: Mapping[str, Any]) -> list[str]:
    """Return what a training loop must know and does not find in the files, nor found in those
    that they were converted from."""
    has_loss_mask = any(part.has_loss_mask for part in parts)
    is_lost = has_loss_mask and "loss_mask" not in layout.keeps
    return ["loss_mask"] if is_lost or "loss_mask" in details.get("lost", ()) else []


def index_of(part: Part, layout: Layout) -> Iterator[pa.Table]:
    """Yield the index of a part in the order of the files' tokens, each table of one file but
    for the last of sequences."""
    if layout.is_packed:
        return part.packed.index()
    return part.stream_index(eos_first=layout.eos_first)

"""nanoGPT's .bin: the token ids of a part, documents end to end, and nothing else.

    train.bin, validation.bin, ...   one file per part; a part without tokens has none
    bytes   num_tokens * itemsize, little-endian, no header
    dtype   not in the file; the manifest names it: uint16 up to id 65,535, else uint32
    lost    segment_ids and position_ids: a reader sees documents by EOS alone

nanoGPT's train.py reads uint16 only and wants `val.bin`; for a larger vocabulary change the dtype
in its `np.memmap` calls.

Source: karpathy/nanoGPT at 3adf61e, data/openwebtext/prepare.py lines 58-81.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokflow.exports.formats import (
    Arrays,
    Counts,
    Format,
    Layout,
    counts_of_stream,
    fixed,
)
from tokflow.exports.part import Part
from tokflow.manifest import FileEntry, Manifest
from tokflow.shard_writer import TOKENS_NAME


@dataclass(frozen=True, kw_only=True, slots=True)
class BinOptions:
    """The format has no options."""


def write(parts: Sequence[Part], options: BinOptions, folder: Path) -> Counts:
    """Write the tokens of each part to `<part>.bin`."""
    counts: Counts = {}
    for part in parts:
        num_tokens = 0
        if part.num_tokens:
            # Buffered, since a raw write may take fewer bytes than it is given and not say so.
            with (folder / f"{part.name}.bin").open("wb") as file:
                for run in part.stream():
                    file.write(run.data.cast("B"))
                    num_tokens += len(run)
        counts |= counts_of_stream(part, num_tokens=num_tokens)
    return counts


def known_checksums(parts: Sequence[Part]) -> dict[str, FileEntry]:
    """Return the checksums of the files that are a whole token shard."""
    shards = {part.name: part.whole_shard for part in parts}
    return {
        f"{name}.bin": shard.manifest.files[TOKENS_NAME]
        for name, shard in shards.items()
        if shard is not None
    }


def read(folder: Path, manifest: Manifest, part: str) -> Iterator[Arrays]:
    """Yield the token ids of a part, memory-mapped; shape (num_tokens,)."""
    path = folder / f"{part}.bin"
    if path.name in manifest.files:
        yield {"token_ids": np.memmap(path, dtype=manifest.details["dtype"], mode="r")}


FORMAT = Format(
    description="nanoGPT: <part>.bin, raw uint16 or uint32, documents end to end",
    options=BinOptions,
    layout=fixed(Layout(made_of="stream", keeps=("token_ids",))),
    write=write,
    read=read,
    known_checksums=known_checksums,
)

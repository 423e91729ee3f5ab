"""nanoGPT's .bin: the token ids of a part, documents end to end, and nothing else.

    train.bin, val.bin, ...   one file per part, and none of a part without tokens; `validation`
            is called val, as nanoGPT has it, unless another part is
    bytes   num_tokens * itemsize, little-endian, no header
    dtype   not in the file; the manifest names it: uint16 up to id 65,535, else uint32
    lost    where documents begin: a reader sees them by EOS alone; the loss mask

nanoGPT's train.py reads uint16 only; for a larger vocabulary change the dtype in its `np.memmap`
calls. It has no meta.pkl: with one, sample.py would take the tokens for characters.

Source: karpathy/nanoGPT at 3adf61e, data/openwebtext/prepare.py lines 58-81, train.py 116-131.
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
from tokflow.exports.names import val_names
from tokflow.exports.part import Part
from tokflow.exports.token_files import write_numbers
from tokflow.manifest import FileEntry, Manifest
from tokflow.shard_writer import TOKENS_NAME


@dataclass(frozen=True, kw_only=True, slots=True)
class BinOptions:
    """The format has no options."""


def write(parts: Sequence[Part], options: BinOptions, folder: Path) -> Counts:
    """Write the tokens of each part to `<part>.bin`."""
    names = val_names([part.name for part in parts])
    counts: Counts = {}
    for part in parts:
        num_tokens = 0
        if part.num_tokens:
            num_tokens = write_numbers(folder / f"{names[part.name]}.bin", part.stream())
        counts |= counts_of_stream(part, num_tokens=num_tokens)
    return counts


def known_checksums(parts: Sequence[Part]) -> dict[str, FileEntry]:
    """Return the checksums of the files that are a whole token shard.

    They are of the bytes as they were tokenized, so that a copy which is not equal to them is
    found by whoever compares it.
    """
    names = val_names([part.name for part in parts])
    shards = {part.name: part.whole_shard for part in parts}
    return {
        f"{names[name]}.bin": shard.manifest.files[TOKENS_NAME]
        for name, shard in shards.items()
        if shard is not None and TOKENS_NAME in shard.manifest.files
    }


def read(folder: Path, manifest: Manifest, part: str) -> Iterator[Arrays]:
    """Yield the token ids of a part, memory-mapped; shape (num_tokens,)."""
    path = folder / f"{val_names(manifest.details['parts'])[part]}.bin"
    if path.name in manifest.files:
        yield {"token_ids": np.memmap(path, dtype=manifest.details["dtype"], mode="r")}


FORMAT = Format(
    description="nanoGPT: train.bin, val.bin, raw uint16 or uint32, documents end to end",
    options=BinOptions,
    layout=fixed(Layout(made_of="stream", keeps=("token_ids",))),
    write=write,
    read=read,
    known_checksums=known_checksums,
    version=2,
)

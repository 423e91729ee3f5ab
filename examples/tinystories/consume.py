"""Draw a batch as nanoGPT's get_batch does: random windows of a memory-mapped file of uint16."""

from pathlib import Path

import numpy as np

rng = np.random.default_rng(1337)


def get_batch(folder, split, block_size=128, batch_size=32):
    data = np.memmap(folder / f"{split}.bin", dtype=np.uint16, mode="r")
    ix = rng.integers(len(data) - block_size, size=batch_size)
    x = np.stack([data[i : i + block_size].astype(np.int64) for i in ix])
    y = np.stack([data[i + 1 : i + 1 + block_size].astype(np.int64) for i in ix])
    return x, y  # there torch.from_numpy of each window


for name in ("tinystories", "tinystories_eos"):
    folder = Path("data/store", name, "exports/bin/latest")
    for split in ("train", "validation"):
        x, y = get_batch(folder, split)
        size = (folder / f"{split}.bin").stat().st_size // 2
        print(f"{name} {split}: {size:,} tokens, a batch {x.shape}, {np.sum(x == 50256)} ends")

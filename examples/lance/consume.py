"""Read windows of tokens as Lance's example does: a map-style dataset, and a sampler of starts
that lets no two windows overlap."""

import lance
import numpy as np


class LanceDataset:  # torch.utils.data.Dataset: it needs no more than these two
    def __init__(self, path, block_size):
        self.rows, self.block_size = lance.dataset(path), block_size

    def __len__(self):
        return self.rows.count_rows() - self.block_size

    def __getitem__(self, start):
        window = self.rows.take(range(start, start + self.block_size))["input_ids"]
        return {"input_ids": window.to_numpy(), "labels": window.to_numpy()}


dataset = LanceDataset("data/store/wikitext/exports/lance/latest/train.lance", block_size=1024)
starts = np.random.default_rng(0).permutation(range(0, len(dataset), dataset.block_size))
batch = np.stack([dataset[start]["input_ids"] for start in starts[:8].tolist()])
print(f"{len(starts)} windows of {dataset.block_size}, a batch {batch.shape} {batch.dtype}")

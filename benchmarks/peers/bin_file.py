"""nanoGPT's train.bin from a tokenized dataset of `datasets`, and back.

As data/openwebtext/prepare.py of nanoGPT does it: one pass that writes the ids into a
memory-mapped file.
"""

import numpy as np


def write(tokenized, path, *, documents_per_batch=1000):
    num_tokens = int(np.sum(tokenized["len"], dtype=np.int64))
    token_ids = np.memmap(path, dtype=np.uint16, mode="w+", shape=(num_tokens,))
    start = 0
    for batch in tokenized.with_format("numpy").iter(documents_per_batch):
        ids = np.concatenate(batch["ids"])
        token_ids[start : start + len(ids)] = ids
        start += len(ids)
    token_ids.flush()


def read(folder):
    yield np.fromfile(folder / "train.bin", np.uint16)

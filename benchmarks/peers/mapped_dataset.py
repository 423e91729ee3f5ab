"""`datasets.map` over documents, then nanoGPT's train.bin of what it gives, and back.

As data/openwebtext/prepare.py of nanoGPT does it: one pass that writes the ids into a
memory-mapped file.
"""

import numpy as np
from datasets import disable_progress_bars, load_dataset


def build(request, tokenize, **options):
    disable_progress_bars()
    kind = "parquet" if request.file.suffix == ".parquet" else "json"
    documents = load_dataset(kind, data_files=str(request.file), split="train")
    tokenized = documents.map(
        tokenize, remove_columns=documents.column_names, num_proc=request.processes, **options
    )
    num_tokens = int(np.sum(tokenized["len"], dtype=np.int64))
    path = request.folder / "train.bin"
    token_ids = np.memmap(path, dtype=np.uint16, mode="w+", shape=(num_tokens,))
    start = 0
    for batch in tokenized.with_format("numpy").iter(1000):
        ids = np.concatenate(batch["ids"])
        token_ids[start : start + len(ids)] = ids
        start += len(ids)
    token_ids.flush()


def read(folder):
    yield np.fromfile(folder / "train.bin", np.uint16)

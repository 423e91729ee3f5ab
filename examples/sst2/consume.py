"""Reopen the caches as archai does, at any sequence length: inputs, and labels one token later."""

import json
from pathlib import Path

import numpy as np

for name in ("sst2", "sst2_drawn"):
    cache = Path("data/store", name, "exports/archai/latest")
    print(name, json.loads((cache / "config.json").read_text()))
    for part, seq_len in (("train", 192), ("train", 1024), ("validation", 192), ("test", 192)):
        ids = np.load(cache / f"{part}.npy", mmap_mode="r")
        num_rows = (len(ids) - 1) // seq_len  # as FastHfDataset has it, and its rows:
        inputs, labels = ids[:seq_len], ids[1 : seq_len + 1]
        print(f"{part}: {num_rows} rows of {len(inputs)}, the first {inputs[:10].tolist()}")

"""Reopen the caches as archai does, at any sequence length: inputs, and labels one token later."""

import json
from pathlib import Path

from tokflow.loaders import open_rows

for name in ("sst2", "sst2_drawn"):
    cache = Path("data/store", name, "exports/archai/latest")
    print(name, json.loads((cache / "config.json").read_text()))
    for part, seq_len in (("train", 192), ("train", 1024), ("validation", 192), ("test", 192)):
        rows = open_rows(cache, part=part, sequence_length=seq_len, tail="drop")  # as archai
        inputs = rows[0]["input_ids"]
        print(f"{part}: {len(rows)} rows of {len(inputs)}, the first {inputs[:10].tolist()}")

"""Read the dumps as PickledTrainerDataset does: a folder's one .json names them."""

import json
import pickle
from pathlib import Path

for part in ("train", "validation"):
    folder = Path("data/store/c_code/exports/pickle/latest", part)
    [metadata] = folder.glob("*.json")
    dumps = json.loads(metadata.read_text())
    assert sorted(dumps) == sorted(path.name for path in folder.glob("*.pkl"))
    samples = [row for name in dumps for row in pickle.loads((folder / name).read_bytes())]
    assert sum(dump["num_tokens"] for dump in dumps.values()) == sum(map(len, samples))
    print(f"{part}: {len(samples)} samples of {len(samples[0])}, {len(dumps)} dumps")

"""mosaicml-streaming's StreamingDataset and MDSWriter.

read gives each column as an array of rows. write takes columns of rows (num_rows, length) in the
dtypes given; `columns` names their encodings.
"""

import json
import shutil
import sys
import tempfile
import types
from pathlib import Path

# It imports torchvision, whose wheels on the package index need the CUDA build of torch.
sys.modules["streaming.vision"] = types.ModuleType("streaming.vision")

import numpy as np  # noqa: E402
from peer_command import run  # noqa: E402
from streaming import MDSWriter, StreamingDataset  # noqa: E402


def read(folder, part, *, validate_hash=None):
    with tempfile.TemporaryDirectory() as temporary:
        # A copy, since the reader puts what it unpacks beside the compressed shards.
        shutil.copytree(folder / part, Path(temporary) / part)
        dataset = StreamingDataset(
            local=temporary, split=part, shuffle=False, batch_size=1, validate_hash=validate_hash
        )
        samples = [dataset[ordinal] for ordinal in range(len(dataset))]
        iterated = list(dataset)
    index = json.loads((folder / part / "index.json").read_text())
    names = index["shards"][0]["column_names"]
    found = {name: np.array([sample[name] for sample in samples]) for name in names}
    for name in names:
        assert np.array_equal(found[name], np.array([sample[name] for sample in iterated]))
    return {**found, "columns": np.array(names)}


def write(documents, folder, *, columns, **options):
    rows = {name: documents[name] for name in columns}
    with MDSWriter(out=str(folder), columns=columns, **options) as writer:
        for values in zip(*rows.values(), strict=True):
            writer.write(dict(zip(rows, values, strict=True)))


if __name__ == "__main__":
    run(read=read, write=write)

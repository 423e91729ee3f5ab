"""litdata's `optimize` with a TokensLoader, as its README prepares text for a language model.

Each input is a row group of a parquet file, so that every worker has some.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import tiktoken
import torch
from litdata import TokensLoader, optimize

from benchmarks.peers.command import EOS_ID, run

TOKENS_PER_CHUNK = 2049 * 8012
"""As in the README."""


def build(request):
    groups = ((path, pq.ParquetFile(path).num_row_groups) for path in request.files)
    optimize(
        fn=tokenize,
        inputs=[(path, group) for path, num in groups for group in range(num)],
        output_dir=str(request.folder / "optimized"),
        chunk_size=TOKENS_PER_CHUNK,
        item_loader=TokensLoader(),
        num_workers=request.processes,
        keep_data_ordered=True,
        reorder_files=False,
        verbose=False,
    )


def tokenize(part):
    path, group = part
    encoding = tiktoken.get_encoding("gpt2")
    for text in pq.ParquetFile(path).read_row_group(group, columns=["text"])["text"].to_pylist():
        yield torch.tensor([*encoding.encode_ordinary(text), EOS_ID], dtype=torch.uint16)


def read(folder):
    """Yield the items of every chunk, `chunk-<worker>-<number>.bin`, by these two numbers."""
    index = json.loads((folder / "optimized/index.json").read_text())
    names = [chunk["filename"] for chunk in index["chunks"]]
    for name in sorted(names, key=lambda name: [*map(int, Path(name).stem.split("-")[1:])]):
        content = np.fromfile(folder / "optimized" / name, np.uint8)
        num_items = int(content[:4].view("<u4")[0])
        offsets = content[4 : 4 + 4 * (num_items + 1)].view("<u4")
        yield content[offsets[0] : offsets[-1]].view("<u2")


if __name__ == "__main__":
    run(build=build, read=read)

"""litdata's `optimize` with a TokensLoader, as its README prepares text for a language model.

Each input is a part of a file, so that every worker has some: a row group, or a range of lines.
"""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import tiktoken
import torch
from litdata import TokensLoader, optimize

from benchmarks.peers.command import EOS_ID, run

BYTES_PER_INPUT = 4_000_000
TOKENS_PER_CHUNK = 2049 * 8012
"""As in the README."""


@dataclass(frozen=True)
class Part:
    """A part of a file."""

    file: Path
    start: int
    """Of a .jsonl: the byte a line starts at; of a .parquet: the row group."""
    end: int


def build(request):
    divide = row_groups if request.file.suffix == ".parquet" else line_ranges
    optimize(
        fn=tokenize,
        inputs=[part for path in request.files for part in divide(path)],
        output_dir=str(request.folder / "optimized"),
        chunk_size=TOKENS_PER_CHUNK,
        item_loader=TokensLoader(),
        num_workers=request.processes,
        keep_data_ordered=True,
        reorder_files=False,
        verbose=False,
    )


def row_groups(path):
    for group in range(pq.ParquetFile(path).num_row_groups):
        yield Part(path, group, group + 1)


def line_ranges(path):
    with path.open("rb") as file:
        starts = [0]
        while file.seek(BYTES_PER_INPUT, 1) < path.stat().st_size:
            file.readline()
            starts.append(file.tell())
    for start, end in itertools.pairwise([*starts, path.stat().st_size]):
        if end > start:
            yield Part(path, start, end)


def tokenize(part):
    encoding = tiktoken.get_encoding("gpt2")
    for text in read_texts(part):
        yield torch.tensor([*encoding.encode_ordinary(text), EOS_ID], dtype=torch.uint16)


def read_texts(part):
    if part.file.suffix == ".parquet":
        table = pq.ParquetFile(part.file).read_row_group(part.start, columns=["text"])
        yield from table["text"].to_pylist()
        return
    with part.file.open("rb") as file:
        file.seek(part.start)
        while file.tell() < part.end:
            yield json.loads(file.readline())["text"]


def read(folder):
    """Yield the items of every chunk, the first worker's chunks first."""
    index = json.loads((folder / "optimized/index.json").read_text())
    names = [chunk["filename"] for chunk in index["chunks"]]
    for name in sorted(names, key=worker_and_number):
        content = np.fromfile(folder / "optimized" / name, np.uint8)
        num_items = int(content[:4].view("<u4")[0])
        offsets = content[4 : 4 + 4 * (num_items + 1)].view("<u4")
        yield content[offsets[0] : offsets[-1]].view("<u2")


def worker_and_number(name):
    """Return (0, 1) for `chunk-0-1.bin`."""
    return tuple(map(int, Path(name).stem.split("-")[1:]))


if __name__ == "__main__":
    run(build=build, read=read)

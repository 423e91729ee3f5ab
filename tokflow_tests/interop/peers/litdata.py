"""litdata's StreamingDataset with a TokensLoader, and its `optimize`.

read gives blocks (num_blocks, block_size). write takes documents as the items of one worker, cut
into chunks of at most `chunk_size` tokens.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from litdata import StreamingDataset, TokensLoader, optimize
from peer_command import each, run


def read(folder, part, *, block_size):
    with tempfile.TemporaryDirectory() as temporary:
        # A copy, since the loader unpacks compressed chunks in place and removes them.
        copy = Path(temporary) / part
        shutil.copytree(folder / part, copy)
        dataset = StreamingDataset(
            str(copy), item_loader=TokensLoader(block_size=block_size), shuffle=False
        )
        blocks = [dataset[ordinal].numpy().astype(np.int64) for ordinal in range(len(dataset))]
        iterated = [block.numpy().astype(np.int64) for block in dataset]
    return {
        "blocks": np.array(blocks).reshape(-1, block_size),
        "blocks_again": np.array(iterated).reshape(-1, block_size),
    }


def write(documents, folder, *, dtype, chunk_size, compression=None):
    items = [torch.tensor(ids, dtype=getattr(torch, dtype)) for ids in each(documents)]
    optimize(
        fn=_all,
        inputs=[items],
        output_dir=str(folder),
        chunk_size=chunk_size,
        compression=compression,
        compression_level="chunk" if compression else None,
        item_loader=TokensLoader(),
        num_workers=1,
        keep_data_ordered=True,
        reorder_files=False,
        verbose=False,
    )


def _all(items):
    yield from items


if __name__ == "__main__":
    run(read=read, write=write)

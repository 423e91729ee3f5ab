"""Levanter's permutation of a dataset, which is given whole arrays, and its shuffle of blocks.

Its datasets go through the permutation an index at a time, which takes longer than told here.
"""

import asyncio

import jax.random
import numpy as np
from levanter.data._prp import Permutation
from levanter.data.dataset import AsyncDataset

from benchmarks.peers.order_command import run

BLOCKS, WINDOW = 64, 64


class Range(AsyncDataset):
    """A dataset whose items are their own numbers."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    async def async_len(self):
        return self.size

    def is_finite(self):
        return True

    async def get_batch(self, indices):
        return indices


def feistel(size, seed):
    return Permutation.make("feistel", size, jax.random.PRNGKey(seed))


def blocks(size, seed):
    dataset = Range(size).block_shuffle(
        io_block_size=BLOCKS, window_blocks=WINDOW, key=jax.random.PRNGKey(seed)
    )
    return lambda places: np.array(asyncio.run(dataset.get_batch(places.tolist())))


if __name__ == "__main__":
    run({"feistel": feistel, "blocks": blocks})

"""Grain's `MapDataset.shuffle`, as a user of it asks: an index at a time."""

import grain
import numpy as np

from benchmarks.peers.order_command import run


def shuffle(size, seed):
    dataset = grain.MapDataset.range(size).shuffle(seed=seed)
    return lambda places: np.fromiter((dataset[place] for place in places.tolist()), np.int64)


if __name__ == "__main__":
    run({"shuffle": shuffle})

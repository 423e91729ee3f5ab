"""Grain: a RandomAccessDataSource over the memory map, its own shuffle, `to_iter_dataset`."""

import grain
import numpy as np

from benchmarks.loader_peers.command import FAR, Resumed, run

SEED = 1


class MappedRows:
    """The rows of a bin, as a user of Grain writes it."""

    def __init__(self, path, sequence_length, *, stored):
        self.tokens = np.memmap(path, dtype="<u2", mode="r")
        self.sequence_length, self.stored = sequence_length, stored

    def __repr__(self):
        return "MappedRows"  # by which Grain's DataLoader knows the source again

    def __len__(self):
        return (len(self.tokens) - self.stored) // self.sequence_length + 1

    def __getitem__(self, index):
        start = int(index) * self.sequence_length
        return self.tokens[start : start + self.stored].astype(np.int64)


def rows(request, *, stored):
    source = MappedRows(request.export("bin") / "train.bin", request.sequence_length, stored=stored)
    dataset = grain.MapDataset.source(source)
    return dataset.shuffle(seed=SEED) if request.is_shuffled else dataset


def batches(request, options=None):
    dataset = rows(request, stored=request.sequence_length + 1)
    dataset = dataset.map(lambda row: (row[:-1], row[1:])).repeat().batch(request.batch_size)
    dataset = dataset.to_iter_dataset(options)
    if request.workers:
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=request.workers))
    return dataset


def batches_without_threads(request):
    return batches(request, grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))


def iterated(request, iterator):
    """Return an iterator of Grain, with its state."""
    return Resumed(request, iterator, load="set_state", keep="get_state")


def ranks(request):
    """Return `shuffle()[rank::world]`, then batches."""
    dataset = rows(request, stored=request.sequence_length)[request.rank :: request.world_size]
    return iterated(request, iter(dataset.batch(request.rank_batch_size).to_iter_dataset()))


def far(request):
    """Return epoch after epoch, from sample 10^9 on."""
    dataset = rows(request, stored=request.sequence_length).repeat().batch(request.batch_size)
    iterator = iter(dataset.to_iter_dataset())
    iterator.set_state({**iterator.get_state(), "next_index": FAR // request.batch_size})
    return iterated(request, iterator)


def sharded(request):
    """Return Grain's DataLoader with an IndexSampler, which shards before it shuffles."""
    source = MappedRows(request.export("bin") / "train.bin", request.sequence_length, stored=8)
    sampler = grain.samplers.IndexSampler(
        num_records=len(source),
        shard_options=grain.sharding.ShardOptions(request.rank, request.world_size),
        shuffle=True,
        num_epochs=1,
        seed=SEED,
    )
    loader = grain.DataLoader(
        data_source=source,
        sampler=sampler,
        operations=[grain.transforms.Batch(request.rank_batch_size)],
        worker_count=request.workers,
    )
    return iterated(request, iter(loader))


def first_of(request):
    """Return the order and the row at its first place."""
    order = grain.MapDataset.range(request.num_rows).shuffle(seed=SEED)
    return order, order[0]


if __name__ == "__main__":
    run(
        speed={"threads": batches, "no threads": batches_without_threads},
        resume={"MapDataset": ranks, "DataLoader": sharded, "far": far},
        order={"": first_of},
    )

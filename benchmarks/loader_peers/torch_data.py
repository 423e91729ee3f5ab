"""torch's DataLoader over a Dataset of the memory map, and torchdata's StatefulDataLoader."""

import itertools

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from benchmarks.loader_peers.command import Resumed, run

SEED = 1


class MappedRows(Dataset):
    """The rows of a bin, as a user of torch writes it."""

    def __init__(self, request):
        self.tokens = np.memmap(request.export("bin") / "train.bin", dtype="<u2", mode="r")
        self.sequence_length = request.sequence_length

    def __len__(self):
        return (len(self.tokens) - 1) // self.sequence_length

    def __getitem__(self, index):
        start = index * self.sequence_length
        row = torch.from_numpy(self.tokens[start : start + self.sequence_length + 1].astype("i8"))
        return row[:-1], row[1:]


class NumberedRows(Dataset):
    """The rows of a bin without labels."""

    def __init__(self, request):
        tokens = np.memmap(request.export("bin") / "train.bin", dtype="<u2", mode="r")
        num_rows = len(tokens) // request.sequence_length
        self.rows = tokens[: num_rows * request.sequence_length].reshape(num_rows, -1)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index].astype("i8")


def batches(request):
    torch.manual_seed(SEED)
    loader = DataLoader(
        MappedRows(request),
        batch_size=request.batch_size,
        shuffle=request.is_shuffled,
        num_workers=request.workers,
        drop_last=True,
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


def get_batch(request):
    """nanoGPT's: windows that begin anywhere."""
    tokens, length = MappedRows(request).tokens, request.sequence_length
    while True:
        starts = torch.randint(len(tokens) - length, (request.batch_size,))
        rows = [torch.from_numpy(tokens[i : i + length].astype(np.int64)) for i in starts]
        labels = [torch.from_numpy(tokens[i + 1 : i + 1 + length].astype(np.int64)) for i in starts]
        yield torch.stack(rows), torch.stack(labels)


def ranks(request):
    """Return StatefulDataLoader with the sampler that torchdata has for ranks."""
    dataset = NumberedRows(request)
    sampler = StatefulDistributedSampler(
        dataset, request.world_size, request.rank, shuffle=request.is_shuffled, seed=SEED
    )
    loader = StatefulDataLoader(
        dataset, batch_size=request.rank_batch_size, sampler=sampler, num_workers=request.workers
    )
    return Resumed(request, loader)


def first_of(request):
    """Return a DistributedSampler and its first row."""
    sampler = StatefulDistributedSampler(range(request.num_rows), 1, 0, seed=SEED)
    order = iter(sampler)
    return order, next(order)


if __name__ == "__main__":
    run(
        speed={"DataLoader": batches, "get_batch": get_batch},
        resume={"StatefulDataLoader": ranks},
        order={"": first_of},
    )

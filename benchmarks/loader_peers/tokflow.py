"""tokflow's own loader."""

from operator import itemgetter

import numpy as np

from benchmarks.loader_peers.command import FAR, Resumed, run
from tokflow.loaders import Loader, open_rows
from tokflow.loaders.orders import Shuffled

SEED = 1
FIELDS = ["input_ids", "labels"]


def batches(request, format_, *, arrays="numpy", prefetch=2, fields=FIELDS, blocks=None, **options):
    """Yield the inputs and labels of batches."""
    rows = open_rows(
        request.export(format_),
        part="train",
        sequence_length=request.sequence_length,
        fields=fields,
        **options,
    )
    with Loader(
        rows,
        batch_size=request.batch_size,
        seed=SEED if request.is_shuffled else None,
        blocks=blocks if request.is_shuffled else None,
        prefetch=prefetch,
        arrays=arrays,
    ) as loader:
        for batch in loader:
            yield batch["input_ids"], batch["labels"]


def ranks(request, format_, *, num_epochs=1):
    """Return the loader of one rank; its state is the same on all."""
    rows = open_rows(request.export(format_), part="train", sequence_length=request.sequence_length)
    loader = Loader(
        rows,
        batch_size=request.batch_size,
        rank=request.rank,
        world_size=request.world_size,
        seed=SEED,
        num_epochs=num_epochs,
    )
    return Resumed(request, loader, itemgetter("input_ids"))


def far(request):
    """Return the loader that goes on from sample 10^9, epoch after epoch."""
    resumed = ranks(request, "bin", num_epochs=None)
    resumed.loader.load_state_dict({**resumed.loader.state_dict(), "samples": FAR})
    return resumed


def first_of(request):
    """Return the order and the row at its first place."""
    order = Shuffled(request.num_rows, SEED)
    return order, order.at(np.arange(1))


SPEED = {
    "bin": lambda request: batches(request, "bin"),
    "bin, no thread": lambda request: batches(request, "bin", prefetch=0),
    "bin, all fields": lambda request: batches(request, "bin", fields=None),
    "bin, torch": lambda request: batches(request, "bin", arrays="torch"),
    "npy": lambda request: batches(request, "npy"),
    "megatron": lambda request: batches(request, "megatron"),
    "parquet": lambda request: batches(request, "parquet", blocks=64, across_documents=True),
}

RESUME = {
    "bin": lambda request: ranks(request, "bin"),
    "parquet": lambda request: ranks(request, "parquet"),  # a last row of as many inputs
    "far": far,
}

if __name__ == "__main__":
    run(speed=SPEED, resume=RESUME, order={"": first_of})

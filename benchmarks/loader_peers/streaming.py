"""mosaicml-streaming: StreamingDataset over MDS with its StreamingDataLoader."""

import itertools
import sys
import types
from operator import itemgetter

# It imports torchvision, whose wheels on the package index need the CUDA build of torch.
sys.modules["streaming.vision"] = types.ModuleType("streaming.vision")

import numpy as np  # noqa: E402
from streaming import StreamingDataLoader, StreamingDataset  # noqa: E402
from streaming.base.shuffle.py1e import get_shuffle_py1e  # noqa: E402

from benchmarks.loader_peers.command import Resumed, run  # noqa: E402

SEED = 1


def rows(request):
    return StreamingDataset(
        local=str(request.export("mds")),
        split="train",
        shuffle=request.is_shuffled,
        shuffle_seed=SEED,
        batch_size=request.rank_batch_size,
    )


def loader_of(request):
    return StreamingDataLoader(
        rows(request), batch_size=request.rank_batch_size, num_workers=request.workers
    )


def batches(request):
    for batch in itertools.chain.from_iterable(itertools.repeat(loader_of(request))):
        tokens = batch["tokens"].long()
        if len(tokens) == request.batch_size:
            yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def ranks(request):
    """Return StreamingDataLoader with its state."""
    return Resumed(request, loader_of(request), itemgetter("tokens"))


def first_of(request):
    """Return the order py1e of one node, its default, of shards of 1,000 rows."""
    sizes = np.full(request.num_rows // 1000, 1000)
    return get_shuffle_py1e(sizes, 1, SEED, 0, block_size=2**18)


if __name__ == "__main__":
    run(
        speed={"StreamingDataLoader": batches},
        resume={"StreamingDataset": ranks},
        order={"": first_of},
    )

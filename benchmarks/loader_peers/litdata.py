"""litdata: StreamingDataset with a TokensLoader, CombinedStreamingDataset, StreamingDataLoader."""

import functools
import itertools
import os
import tempfile

from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset, TokensLoader

from benchmarks.loader_peers.command import Resumed, run

SEED = 1


def rows(request, block_size):
    return StreamingDataset(
        str(request.export("litdata") / "train"),
        item_loader=TokensLoader(block_size=block_size),
        shuffle=request.is_shuffled,
        seed=SEED,
        drop_last=False,
    )


def batches(request):
    loader = StreamingDataLoader(
        rows(request, request.sequence_length + 1),
        batch_size=request.batch_size,
        num_workers=request.workers,
        drop_last=True,
    )
    for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
        batch = batch.long()
        yield batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


def ranks(request, *, is_combined=False):
    """Return StreamingDataLoader over one dataset, or a CombinedStreamingDataset of two halves."""
    os.environ["WORLD_SIZE"] = str(request.world_size)
    os.environ["GLOBAL_RANK"] = str(request.rank)
    asked = [request.sibling(half) for half in "ab"] if is_combined else [request]
    dataset, *others = (rows(of, request.sequence_length) for of in asked)
    if others:
        both = [dataset, *others]
        dataset = CombinedStreamingDataset(both, seed=SEED, iterate_over_all=True)
    return Resumed(
        request,
        StreamingDataLoader(
            dataset, batch_size=request.rank_batch_size, num_workers=request.workers
        ),
    )


if __name__ == "__main__":
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = tempfile.mkdtemp()
    run(
        speed={"StreamingDataLoader": batches},
        resume={
            "StreamingDataset": ranks,
            "CombinedStreamingDataset": functools.partial(ranks, is_combined=True),
        },
    )

"""litdata: StreamingDataset with a TokensLoader, CombinedStreamingDataset, StreamingDataLoader."""

import itertools
import os
import tempfile

from litdata import (
    CombinedStreamingDataset,
    StreamingDataLoader,
    StreamingDataset,
    TokensLoader,
)

from benchmarks.loader_peers.command import run, saved

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


class Resumed:
    """StreamingDataLoader over one dataset."""

    def __init__(self, request):
        os.environ["WORLD_SIZE"] = str(request.world_size)
        os.environ["GLOBAL_RANK"] = str(request.rank)
        self.loader = StreamingDataLoader(
            self.dataset(request),
            batch_size=request.rank_batch_size,
            num_workers=request.workers,
        )
        if state := saved(request):
            self.loader.load_state_dict(state)

    def dataset(self, request):
        return rows(request, request.sequence_length)

    def __iter__(self):
        return iter(self.loader)

    def state(self):
        return self.loader.state_dict()


class Combined(Resumed):
    """The same over a CombinedStreamingDataset of two halves."""

    def dataset(self, request):
        halves = [rows(request.sibling(half), request.sequence_length) for half in "ab"]
        return CombinedStreamingDataset(halves, seed=SEED, iterate_over_all=True)


if __name__ == "__main__":
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = tempfile.mkdtemp()
    run(
        speed={"StreamingDataLoader": batches},
        resume={"StreamingDataset": Resumed, "CombinedStreamingDataset": Combined},
    )

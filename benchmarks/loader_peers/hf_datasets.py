"""datasets: `load_from_disk` with `iter`, and streaming with its state for resume."""

from operator import itemgetter

import numpy as np
import pyarrow as pa
from datasets import Dataset, load_dataset, load_from_disk
from datasets.distributed import split_dataset_by_node

from benchmarks.loader_peers.command import Resumed, run

SEED = 1
SHUFFLE_BUFFER = 1_000


def batches(request):
    dataset = load_from_disk(str(request.export("hf_dataset")))["train"].with_format("numpy")
    dataset = dataset.shuffle(seed=SEED) if request.is_shuffled else dataset
    while True:
        for batch in dataset.iter(request.batch_size, drop_last_batch=True):
            tokens = batch["input_ids"].astype("i8")
            yield np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])


def streaming(request):
    """Return `streaming=True`, shuffled with a buffer, split by node, batched."""
    files = sorted(map(str, request.export("parquet").glob("train-*.parquet")))
    dataset = load_dataset("parquet", data_files=files, split="train", streaming=True)
    dataset = dataset.select_columns(["input_ids"])
    if request.is_shuffled:
        dataset = dataset.shuffle(seed=SEED, buffer_size=SHUFFLE_BUFFER)
    dataset = split_dataset_by_node(dataset, request.rank, request.world_size)
    return Resumed(request, dataset.batch(request.rank_batch_size), itemgetter("input_ids"))


def first_of(request):
    """Return `shuffle`, in memory, of a dataset that takes none."""
    nothing = Dataset(pa.table({"nothing": pa.nulls(request.num_rows)}))
    shuffled = nothing.shuffle(seed=SEED, keep_in_memory=True)
    return shuffled, shuffled[0]


if __name__ == "__main__":
    run(speed={"iter": batches}, resume={"streaming": streaming}, order={"": first_of})

"""Megatron core: GPTDataset by its builder, in torch's DataLoader with consecutive batches."""

import tempfile
from types import SimpleNamespace

from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from torch.utils.data import DataLoader

from benchmarks.loader_peers.command import run

SEED = 1
NUM_SAMPLES = 1_000_000


def batches(request):
    prefix = request.export("megatron") / "train_text_document"
    dataset = build(prefix, request.sequence_length, NUM_SAMPLES)
    indices = (
        range(start, start + request.batch_size)
        for start in range(0, NUM_SAMPLES, request.batch_size)
    )
    for batch in DataLoader(dataset, batch_sampler=indices, num_workers=request.workers):
        yield batch["tokens"], batch["labels"]


def build(prefix, sequence_length, num_samples):
    """Return the dataset of so many samples; its index files go to an empty cache."""
    config = GPTDatasetConfig(
        random_seed=SEED,
        sequence_length=sequence_length,
        blend=([str(prefix)], None),
        split="1,0,0",
        path_to_cache=tempfile.mkdtemp(),
        tokenizer=SimpleNamespace(vocab_size=50_257, eod=50_256, pad=-1, unique_identifiers={}),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    sizes = [num_samples, 0, 0]
    dataset, _, _ = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()
    return dataset


def first_of(request):
    """Return a dataset of so many samples, and its first."""
    prefix = request.export("megatron") / "train_text_document"
    dataset = build(prefix, request.sequence_length, request.num_rows)
    return dataset, dataset[0]


if __name__ == "__main__":
    run(speed={"GPTDataset": batches}, order={"": first_of})

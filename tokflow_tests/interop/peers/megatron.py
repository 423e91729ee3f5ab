"""megatron-core's own reader and writer of .bin and .idx."""

import tempfile
from types import SimpleNamespace

import numpy as np
import torch
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder
from megatron.core.datasets.utils import Split
from peer_command import each, run


def read(folder, part, key="text", prefix=None, of="document", sequence_length=None, eod=0):
    """Read each sequence, and all at once; with `sequence_length` also the samples of training."""
    name = "_".join(filter(None, [prefix, part, key, of]))
    dataset = IndexedDataset(str(folder / name))
    sequences = [dataset[number] for number in range(len(dataset))]
    for one, again in zip(sequences, dataset[:], strict=True):
        np.testing.assert_array_equal(one, again)
    in_tokens = np.concatenate([[0], np.cumsum(dataset.sequence_lengths)])
    found = {
        "token_ids": np.concatenate(sequences),
        "offsets": in_tokens[dataset.document_indices],
        "sequence_lengths": dataset.sequence_lengths,
        "signed": np.array(dataset.index.dtype.__name__),
    }
    return found if sequence_length is None else found | samples(dataset, sequence_length, eod)


def samples(dataset, sequence_length, eod):
    """Return what a training loop gets in one epoch, in the order before samples are shuffled."""
    with tempfile.TemporaryDirectory() as cache:
        config = GPTDatasetConfig(
            random_seed=1,
            sequence_length=sequence_length,
            split="1",
            path_to_cache=cache,
            tokenizer=SimpleNamespace(vocab_size=None, eod=eod, pad=-1, unique_identifiers={}),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
        )
        every = np.arange(len(dataset), dtype=np.int32)
        made = GPTDataset(dataset, dataset.path_prefix, every, None, Split.train, config)
        order = np.argsort(made.shuffle_index[: len(made)])
        rows = [made[int(number)] for number in order]
        return {
            "document_index": np.array(made.document_index),
            "tokens": torch.stack([row["tokens"] for row in rows]).numpy(),
            "labels": torch.stack([row["labels"] for row in rows]).numpy(),
        }


def write(documents, folder, part="train", key="text", vocab_size=None):
    """Write documents as tools/preprocess_data.py does: one of no tokens has no sequence."""
    dtype = DType.optimal_dtype(vocab_size)
    path = folder / f"{part}_{key}_document"
    builder = IndexedDatasetBuilder(f"{path}.bin", dtype=dtype)
    for token_ids in each(documents):
        builder.add_document(token_ids, [len(token_ids)] if len(token_ids) else [])
    builder.finalize(f"{path}.idx")


if __name__ == "__main__":
    run(read=read, write=write)

"""modalities' PackedMemMapDatasetBase and ...Continuous, and its PackedDataGenerator.

read gives the documents end to end with their offsets, and the blocks of the continuous dataset,
(num_blocks, block_size). write packs documents through a tokenizer that reads ids from the text.
"""

import json

import numpy as np
from modalities.api import create_raw_data_index
from modalities.dataloader.create_packed_data import PackedDataGenerator
from modalities.dataloader.dataset import PackedMemMapDatasetBase, PackedMemMapDatasetContinuous
from modalities.tokenization.tokenizer_wrapper import TokenizerWrapper
from peer_command import each, run


class IdsTokenizer(TokenizerWrapper):
    """The text "12 7" is the tokens 12 and 7."""

    def __init__(self, vocab_size):
        self._vocab_size = vocab_size

    def tokenize(self, text):
        return [int(word) for word in text.split()]

    def decode(self, token_ids):
        return " ".join(map(str, token_ids))

    @property
    def vocab_size(self):
        return self._vocab_size

    def get_token_id(self, token):
        return int(token)

    def is_special_token_id(self, token_id):
        return False


def read(folder, part, *, block_size, reuse_last_target=False):
    path = folder / f"{part}.pbin"
    dataset = PackedMemMapDatasetBase(path, sample_key="ids")
    documents = [dataset[ordinal]["ids"] for ordinal in range(len(dataset))]
    continuous = PackedMemMapDatasetContinuous(
        path, sample_key="ids", block_size=block_size, reuse_last_target=reuse_last_target
    )
    blocks = [continuous[ordinal]["ids"] for ordinal in range(len(continuous))]
    return {
        "token_ids": np.concatenate(documents).astype(np.int64),
        "offsets": np.cumsum([0, *map(len, documents)]),
        "blocks": np.array(blocks, dtype=np.int64).reshape(-1, block_size),
        "dtype": np.array(f"uint{8 * dataset.token_size_in_bytes}"),
    }


def write(documents, folder, *, vocab_size, eos_id):
    source, index = folder / "documents.jsonl", folder / "documents.idx"
    with source.open("w") as file:
        for token_ids in each(documents):
            text = " ".join(map(str, token_ids))
            file.write(json.dumps({"text": text}) + "\n")
    create_raw_data_index(source, index)
    generator = PackedDataGenerator(
        src_path=source,
        index_path=index,
        tokenizer=IdsTokenizer(vocab_size),
        eod_token=str(eos_id),
        number_of_processes=1,
        jq_pattern=".text",
        processing_batch_size=10,
        raw_samples_queue_size=300,
        processed_samples_queue_size=300,
    )
    generator.run(folder / "train.pbin")


if __name__ == "__main__":
    run(read=read, write=write)

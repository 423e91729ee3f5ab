"""archai's provider of a cache, and the sequences that it gives; and the cache that it writes.

It writes from texts: a document of the ids 5 and 7 is the text `w5 w7`, for a tokenizer to which
such words are tokens.
"""

import numpy as np
from archai.datasets.nlp.fast_hf_dataset_provider import FastHfDatasetProvider
from datasets import Dataset, DatasetDict
from peer_command import each, run
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

GETTERS = {
    "train": "get_train_dataset",
    "validation": "get_val_dataset",
    "test": "get_test_dataset",
}


def read(folder, part, *, sequence_length=8):
    """Return the tokens as they are mapped, and as a loader takes them with the next ones."""
    provider = FastHfDatasetProvider.from_cache(str(folder))
    dataset = getattr(provider, GETTERS[part])(seq_len=sequence_length)
    pairs = [dataset[number] for number in range(len(dataset))]
    return {
        "token_ids": np.array(dataset.input_ids),
        "signed": np.array(str(dataset.input_ids.dtype)),
        "inputs": np.array([inputs.numpy() for inputs, _ in pairs]),
        "next": np.array([labels.numpy() for _, labels in pairs]),
        "has_tokenizer": np.array(provider.tokenizer is not None),
    }


def write(documents, folder, *, vocab_size):
    """Write the documents, the EOS of each left out, as all three parts; it appends the EOS."""
    texts = [" ".join(f"w{token}" for token in document[:-1]) for document in each(documents)]
    part = Dataset.from_dict({"text": texts})
    parts = DatasetDict({"train": part, "validation": part, "test": part})
    parts.save_to_disk(folder / "texts")
    FastHfDatasetProvider.from_disk(
        str(folder / "texts"),
        tokenizer=word_tokenizer(vocab_size, eos_id=documents["token_ids"][-1]),
        shuffle=False,
        use_shared_memory=False,
        cache_dir=str(folder / "cache"),
    )


def word_tokenizer(vocab_size, *, eos_id):
    words = {f"w{token}": token for token in range(vocab_size) if token != eos_id}
    tokenizer = Tokenizer(WordLevel({**words, "<eos>": int(eos_id)}, unk_token="<eos>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(["<eos>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


if __name__ == "__main__":
    run(read=read, write=write)

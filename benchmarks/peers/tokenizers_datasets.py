"""tokenizers over `datasets.map` in batches, then a memory-mapped file.

As the course of Hugging Face maps a fast tokenizer: batched, in several processes. Without
offsets (`encode_batch_fast`), and with an EOS spelt in the text read as text.
"""

import functools
import os

from benchmarks.peers import mapped_dataset
from benchmarks.peers.command import EOS_ID, run


def build(request):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes share the cores already
    path = {"path": str(request.tokenizer / "tokenizer.json")}
    mapped_dataset.build(request, tokenize, fn_kwargs=path, batched=True)


def tokenize(batch, path):
    encoded = load_tokenizer(path).encode_batch_fast(batch["text"], add_special_tokens=False)
    ids = [[*one.ids, EOS_ID] for one in encoded]
    return {"ids": ids, "len": [len(document) for document in ids]}


@functools.cache
def load_tokenizer(path):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = True
    return tokenizer


if __name__ == "__main__":
    run(build=build, read=mapped_dataset.read)

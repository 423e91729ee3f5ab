"""tiktoken over `datasets.map`, then a memory-mapped file: what most projects do.

The steps are those of nanoGPT's data/openwebtext/prepare.py: `encode_ordinary` and EOS for each
document in several processes.
"""

import tiktoken

from benchmarks.peers import mapped_dataset
from benchmarks.peers.command import run

encoding = tiktoken.get_encoding("gpt2")


def build(request):
    mapped_dataset.build(request, tokenize)


def tokenize(document):
    ids = encoding.encode_ordinary(document["text"])
    ids.append(encoding.eot_token)
    return {"ids": ids, "len": len(ids)}


if __name__ == "__main__":
    run(build=build, read=mapped_dataset.read)

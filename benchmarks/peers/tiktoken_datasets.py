"""tiktoken over `datasets.map`, then a memory-mapped file: what most projects do.

The steps are those of nanoGPT's data/openwebtext/prepare.py: `encode_ordinary` and EOS for each
document in several processes.
"""

import tiktoken
from datasets import disable_progress_bars, load_dataset

from benchmarks.peers import bin_file
from benchmarks.peers.command import run

encoding = tiktoken.get_encoding("gpt2")


def build(request):
    disable_progress_bars()
    kind = "parquet" if request.file.suffix == ".parquet" else "json"
    documents = load_dataset(kind, data_files=str(request.file), split="train")
    tokenized = documents.map(
        tokenize, remove_columns=documents.column_names, num_proc=request.processes
    )
    bin_file.write(tokenized, request.folder / "train.bin")


def tokenize(document):
    ids = encoding.encode_ordinary(document["text"])
    ids.append(encoding.eot_token)
    return {"ids": ids, "len": len(ids)}


if __name__ == "__main__":
    run(build=build, read=bin_file.read)

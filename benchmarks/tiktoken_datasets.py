"""What most projects do: tiktoken over `datasets.map`, then a memory-mapped file.

    python -m benchmarks.tiktoken_datasets FILE --output train.bin [--processes 2]

Needs `datasets` (`make bench-peers`). The steps are those of nanoGPT's data/openwebtext/prepare.py:
`encode_ordinary` and EOS for each document in several processes, then one pass that writes the ids
into a memory-mapped file.
"""

import argparse
from pathlib import Path

import numpy as np
import tiktoken
from datasets import disable_progress_bars, load_dataset

encoding = tiktoken.get_encoding("gpt2")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--text", default="text")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    disable_progress_bars()
    kind = "parquet" if arguments.file.suffix == ".parquet" else "json"
    documents = load_dataset(kind, data_files=str(arguments.file), split="train")
    tokenized = documents.map(
        tokenize,
        fn_kwargs={"text": arguments.text},
        remove_columns=documents.column_names,
        num_proc=arguments.processes,
    )
    write(tokenized, arguments.output)


def tokenize(document, text):
    ids = encoding.encode_ordinary(document[text])
    ids.append(encoding.eot_token)
    return {"ids": ids, "len": len(ids)}


def write(tokenized, path, *, documents_per_batch=1000):
    num_tokens = int(np.sum(tokenized["len"], dtype=np.int64))
    token_ids = np.memmap(path, dtype=np.uint16, mode="w+", shape=(num_tokens,))
    start = 0
    for batch in tokenized.with_format("numpy").iter(documents_per_batch):
        ids = np.concatenate(batch["ids"])
        token_ids[start : start + len(ids)] = ids
        start += len(ids)
    token_ids.flush()


if __name__ == "__main__":
    main()

"""The script that tokflow is measured against: the engine alone, written as well as it can be.

    python -m benchmarks.raw_engine FILE TOKENIZER_FOLDER train.bin

Without checks, manifest, split and index: it holds all ids of the file in memory and stops
silently at the first bad line, and a killed run leaves a file that looks whole.
"""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
from gigatoken import JsonlFileSource, ParquetFileSource, Tokenizer

EOS = "<|endoftext|>"


def main():
    file, folder, output = map(Path, sys.argv[1:])
    source_class = ParquetFileSource if file.suffix == ".parquet" else JsonlFileSource
    tokenizer, eos_id = load_tokenizer(folder)
    encoded = tokenizer.encode_files(source_class([file], "text"))
    token_ids, offsets = encoded.layout.content.data, encoded.layout.offsets.data
    end_documents(token_ids, offsets, eos_id=eos_id).tofile(output)


def load_tokenizer(folder):
    """Return the engine and the id of EOS.

    Without the added tokens, since the engine turns an EOS spelt in the text into the control
    token, which the reference (tiktoken's `encode_ordinary`) does not.
    """
    fields = json.loads((folder / "tokenizer.json").read_text())
    eos_id = next(token["id"] for token in fields["added_tokens"] if token["content"] == EOS)
    fields["added_tokens"] = []
    return Tokenizer.from_json(json.dumps(fields)), eos_id


def end_documents(token_ids, offsets, *, eos_id):
    """Return the ids as uint16 with `eos_id` after each document.

    A slice per document is 3 to 5 times as fast as `np.insert` on documents of 6,500 tokens.
    """
    ended = np.full(len(token_ids) + len(offsets) - 1, eos_id, np.uint16)
    bounds = offsets.tolist()
    for document, (start, end) in enumerate(itertools.pairwise(bounds)):
        ended[start + document : end + document] = token_ids[start:end]
    return ended


if __name__ == "__main__":
    main()

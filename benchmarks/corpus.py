"""The text that is measured: Python sources of this machine in one file.

    python -m benchmarks.corpus FILE [--bytes 60_000_000]

A process of its own, since a parent's peak memory counts as its children's (see process.py).
"""

import argparse
import itertools
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tokflow import demo


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--bytes", type=int, default=demo.MAX_BYTES)
    arguments = parser.parse_args()
    write_corpus(arguments.file, read_texts(arguments.bytes))


def read_texts(max_bytes):
    """Yield source texts until the next would pass `max_bytes`.

    After the first pass through the sources each further one exchanges two other letters in
    every text: most words become new ones, so no cache of an engine knows the text already, and
    lengths, line ends and indents stay as they are in real code.
    """
    documents, _ = demo.gather(demo.python_roots(), max_bytes=min(max_bytes, demo.MAX_BYTES))
    num_bytes = 0
    for table in itertools.chain([{}], exchanges()):
        for document in documents:
            text = document.content.translate(table)
            num_bytes += len(text.encode())
            if num_bytes > max_bytes:
                return
            yield text


def exchanges():
    """Yield translation tables that exchange two letters, in an order that is always the same."""
    pairs = list(itertools.combinations("etaoinsrhdlu", 2))
    random.Random(0).shuffle(pairs)
    for one, other in pairs:
        letters = one + other
        yield str.maketrans(letters + letters.upper(), letters[::-1] + letters[::-1].upper())


def write_corpus(path, texts):
    """Write one document per line or row, as `text`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        write_parquet(path, texts)
    else:
        with path.open("w", encoding="utf-8") as file:
            for text in texts:
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def write_parquet(path, texts, *, rows_per_group=1000):
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while group := list(itertools.islice(texts, rows_per_group)):
            writer.write_table(pa.table({"text": group}, schema=schema))


if __name__ == "__main__":
    main()

"""The text that is measured: Python sources of this machine in one file, or in several.

    python -m benchmarks.corpus FILE [--bytes 60_000_000]
    python -m benchmarks.corpus 'FOLDER/*.jsonl' --files 8

The sources are those of the standard library and the installed packages, a file per document (6,500
tokens on average). No document is empty: some peers leave empty ones out, and modalities 0.5.0
loses everything after one.

There are some tens of MB of them, so they are used again and again, each time with other letters
exchanged. That keeps lengths, line ends and indents as they are, but most words
become new ones: no cache of an engine knows the text already, and since no tokenizer was trained on
such words, they take more tokens than those of real text. It is the same for all programs.

A process of its own, since a parent's peak memory counts as its children's (see process.py).
"""

import argparse
import itertools
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from examples import demo


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--bytes", type=int, default=demo.MAX_BYTES)
    parser.add_argument("--files", type=int, default=1, help="with FILE a pattern")
    arguments = parser.parse_args()
    texts = grow(read_code(), arguments.bytes)
    if arguments.files == 1:
        write_corpus(arguments.file, texts)
    else:
        write_corpora(arguments.file, divide(texts, arguments.bytes, arguments.files))


def read_code():
    documents, _ = demo.gather(demo.python_roots(), max_bytes=demo.MAX_BYTES)
    return [content for content in documents if content]


def grow(texts, max_bytes):
    """Yield texts until the next would pass `max_bytes`: as they are, then with letters exchanged.

    Raises: RuntimeError where the exchanges are used up before.
    """
    num_bytes = 0
    for table in itertools.chain([{}], exchanges()):
        for text in texts:
            changed = text.translate(table)
            num_bytes += len(changed.encode())
            if num_bytes > max_bytes:
                return
            yield changed
    raise RuntimeError(f"expected {max_bytes:,} bytes of text, found texts for {num_bytes:,} only")


def exchanges():
    """Yield tables that exchange two letters, then two pairs of them, always in the same order."""
    pairs = list(itertools.combinations("etaoinsrhdlu", 2))
    random.Random(0).shuffle(pairs)
    for pair in pairs:
        yield exchange(pair)
    for pair, other in itertools.combinations(pairs, 2):
        if not set(pair) & set(other):
            yield exchange(pair) | exchange(other)


def exchange(pair):
    letters = "".join(pair)
    return str.maketrans(letters + letters.upper(), letters[::-1] + letters[::-1].upper())


def divide(texts, max_bytes, num_files):
    """Yield the texts of each file, in the same order: of one size, as far as whole texts allow.

    There are at most `max_bytes` of them; those of one file are to be used up before the next.
    """
    num_bytes = 0

    def number_of_file(text):
        nonlocal num_bytes
        number = num_bytes * num_files // max_bytes
        num_bytes += len(text.encode())
        return number

    for _, of_file in itertools.groupby(texts, number_of_file):
        yield of_file


def write_corpora(pattern, files):
    """Write a file for each of several texts, its number for the `*`; a folder that is there is
    whole.
    """
    partial = pattern.parent.with_name(f"partial-{pattern.parent.name}")
    for number, texts in enumerate(files):
        write_corpus(partial / pattern.name.replace("*", f"{number:03}"), texts)
    partial.rename(pattern.parent)


def write_corpus(path, texts):
    """Write one document per line or row, as `text`; a file that is there is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"partial-{path.name}")
    write = write_parquet if path.suffix == ".parquet" else write_jsonl
    write(partial, texts)
    partial.rename(path)


def write_jsonl(path, texts):
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

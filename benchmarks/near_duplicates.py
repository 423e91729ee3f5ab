"""What signatures and the join of near-duplicates cost, and which planted copies they find.

    python -m benchmarks.near_duplicates [--documents 400000] [--bands 25] [--rows 5]

Documents of 80 made-up words, about 300 tokens of GPT-2, in eight files; a tenth are edits of
others, in which so many words in a hundred are exchanged. Processor time of one process, wall time
of none: the stages are run again by themselves after a build.
"""

import argparse
import json
import random
import resource
import tempfile
import time
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.programs import GPT2
from tokflow.near_duplicates import pairs
from tokflow.near_duplicates.pairs import PAIRS_NAME
from tokflow.pipeline.declared import make_dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset

NUM_FILES = 8
NUM_SOURCES = 20_000
RATES = (0.01, 0.02, 0.05, 0.1)
THRESHOLD = 0.7


def write_texts(folder, num_documents):
    """Write the documents; return (file, row) of each planted copy and of what it is an edit of."""
    drawn = random.Random(0)
    words = [
        "".join(drawn.choices("etaoinshrdlucmfw", k=drawn.randint(2, 9))) for _ in range(30_000)
    ]
    weights = list(accumulate(1 / (rank + 10) for rank in range(len(words))))
    files = [(folder / f"{number}.jsonl").open("w") for number in range(NUM_FILES)]
    rows, sources, planted = [0] * NUM_FILES, [], []
    for _ in range(num_documents):
        number = drawn.randrange(NUM_FILES)
        place = number, rows[number]
        if sources and drawn.random() < 0.1:
            source, text = drawn.choice(sources)
            rate = drawn.choice(RATES)
            text = [drawn.choice(words) if drawn.random() < rate else word for word in text]
            planted.append((source, place))
        else:
            text = drawn.choices(words, cum_weights=weights, k=80)
            if len(sources) < NUM_SOURCES:
                sources.append((place, text))
        files[number].write(json.dumps({"text": " ".join(text)}) + "\n")
        rows[number] += 1
    for file in files:
        file.close()
    return planted


def measured(output, folder):
    """Return the processor seconds of writing an output again."""
    folder.mkdir()
    started = time.process_time()
    output.step.writer(output).make(folder)
    return time.process_time() - started


def found_of_planted(graph, planted, ngram):
    """Yield (similarity, whether the pair is there) of each planted copy that is no equal text."""
    shards = [graph.open_tokens(key) for key in graph.partitions]
    first = np.cumsum([0, *(of.manifest.counts["num_documents"] for of in shards)])
    hashes = [of.documents(["text_hash"])["text_hash"].to_pylist() for of in shards]
    table = pq.read_table(graph.output("near_duplicates").open().file(PAIRS_NAME))
    known = {frozenset(of) for of in zip(*(table[i].to_pylist() for i in (0, 1)), strict=True)}
    some = [of for of in planted if hashes[of[0][0]][of[0][1]] != hashes[of[1][0]][of[1][1]]]
    places = np.array([[first[file] + row for file, row in pair] for pair in some])
    for pair, alike in zip(some, pairs.similarities(places, shards, ngram), strict=True):
        yield alike, frozenset(hashes[file][row] for file, row in pair) in known


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=400_000)
    parser.add_argument("--bands", type=int, default=25)
    parser.add_argument("--rows", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "raw").mkdir()
        planted = write_texts(folder / "raw", arguments.documents)
        how = {"threshold": THRESHOLD, "bands": arguments.bands, "rows": arguments.rows}
        fields = {"raw": {"files": "raw/*.jsonl"}, "near_duplicates": how, "store": "store"}
        fields |= {"name": "near", "tokenizer": {"kind": "huggingface", "name": str(GPT2)}}
        dataset = make_dataset(fields, base=folder, where="benchmark")
        assert not build_dataset(dataset, jobs=1).failed
        graph = graph_of(dataset)
        num_tokens = sum(graph.open_tokens(key).num_tokens for key in graph.partitions)
        signatures = sum(
            measured(graph.output("signatures", key), folder / f"again-{number}")
            for number, key in enumerate(graph.partitions)
        )
        join = measured(graph.output("near_duplicates"), folder / "again")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        counts = graph.output("near_duplicates").manifest().counts
        print(f"{arguments.documents:,} documents, {num_tokens:,} tokens, {arguments.bands} bands")
        print(f"signatures {signatures:.1f} s of CPU, {num_tokens / signatures / 1e6:.0f} Mtok/s")
        compared, proven = counts["num_compared"], counts["num_pairs"]
        print(f"join {join:.1f} s of CPU: {compared:,} pairs compared, {proven:,} proven")
        print(f"peak {peak:.0f} MB, of the whole process with the build")
        found = np.array([*found_of_planted(graph, planted, dataset.near_duplicates.ngram)])
        for least, most in ((0.7, 0.75), (0.75, 0.8), (0.8, 0.9), (0.9, 1.01), (0.7, 1.01)):
            of = found[(found[:, 0] >= least) & (found[:, 0] < most), 1]
            print(f"similarity {least} to {min(most, 1)}: {of.mean():.3f} of {len(of):,} found")


if __name__ == "__main__":
    main()

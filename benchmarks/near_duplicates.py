"""What signatures and the join of near-duplicates cost, and which planted copies they find.

    python -m benchmarks.near_duplicates [DOCUMENTS [BANDS [ROWS]]]

Documents of 80 made-up words, about 260 tokens of GPT-2, in eight files; a tenth are edits of
others. Processor time of one process: both stages are run again by themselves after a build. Beside
it datatrove's four stages on the same files, where `make bench-peers PEERS=datatrove_minhash` has
installed them; a planted copy is found if it or what it is a copy of is removed.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.peer_programs import environment_of, python
from benchmarks.programs import GPT2, ROOT
from tokflow.near_duplicates import pairs
from tokflow.pipeline.declared import make_dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset

NUM_FILES = 8
RATES = (0.01, 0.02, 0.05, 0.1)
"""Words of a copy that are exchanged."""


def write_texts(folder, num_documents):
    """Write the documents; return (file, row) of each copy and of what it is a copy of."""
    drawn = random.Random(0)
    words = [
        "".join(drawn.choices("etaoinshrdlucmfw", k=drawn.randint(2, 9))) for _ in range(30_000)
    ]
    weights = list(accumulate(1 / (rank + 10) for rank in range(len(words))))
    rows, sources, copies = [0] * NUM_FILES, [], []
    with ExitStack() as stack:
        paths = (folder / f"{number}.jsonl" for number in range(NUM_FILES))
        files = [stack.enter_context(path.open("w")) for path in paths]
        for _ in range(num_documents):
            number = drawn.randrange(NUM_FILES)
            if sources and drawn.random() < 0.1:
                source, text = drawn.choice(sources)
                rate = drawn.choice(RATES)
                text = [drawn.choice(words) if drawn.random() < rate else word for word in text]
                copies.append((source, (number, rows[number])))
            else:
                text = drawn.choices(words, cum_weights=weights, k=80)
                if len(sources) < 20_000:
                    sources.append(((number, rows[number]), text))
            files[number].write(json.dumps({"text": " ".join(text)}) + "\n")
            rows[number] += 1
    return copies


def measured(output, folder):
    """Return the processor seconds of writing an output again."""
    folder.mkdir()
    started = time.process_time()
    output.step.writer(output).make(folder)
    return time.process_time() - started


def found_of(graph, shards, copies, ngram):
    """Return of each copy that is no equal text the similarity, whether the pair is there, and the
    two places."""
    first = np.cumsum([0, *(of.manifest.counts["num_documents"] for of in shards)])
    hashes = [of.documents(["text_hash"])["text_hash"].to_pylist() for of in shards]
    texts = [[hashes[file][row] for file, row in pair] for pair in copies]
    some = [number for number, (text, other) in enumerate(texts) if text != other]
    places = np.array([[first[file] + row for file, row in copies[of]] for of in some])
    table = pq.read_table(graph.output("near_duplicates").open().file(pairs.PAIRS_NAME))
    known = set(map(frozenset, zip(*(table[at].to_pylist() for at in (0, 1)), strict=True)))
    alike = pairs.similarities(places, pairs.corpus_of(shards), ngram)
    is_found = [frozenset(texts[of]) in known for of in some]
    return np.array(alike), {"tokflow": is_found}, [copies[of] for of in some]


def found_by_datatrove(folder, copies):
    """Run datatrove, print what it took and return whether it finds each of some copies."""
    command = [*python("datatrove_minhash"), folder / "raw", folder / "datatrove"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    said = json.loads(done.stdout.splitlines()[-1])
    removed, peak = set(said["removed"]), said["peak_bytes"] / 1e6
    print(f"datatrove: {said['seconds']:.1f} s of CPU, removes {len(removed):,}; {peak:,.0f} MB")
    ids = [{f"{file}.jsonl/{row}" for file, row in pair} for pair in copies]
    return [bool(pair & removed) for pair in ids]


def main():
    num_documents, bands, rows = [*map(int, sys.argv[1:]), *(400_000, 25, 5)[len(sys.argv) - 1 :]]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "raw").mkdir()
        copies = write_texts(folder / "raw", num_documents)
        how = {"threshold": 0.7, "bands": bands, "rows": rows}
        fields = {"raw": {"files": "raw/*.jsonl"}, "near_duplicates": how, "store": "store"}
        fields |= {"name": "near", "tokenizer": {"kind": "huggingface", "name": str(GPT2)}}
        dataset = make_dataset(fields, base=folder, where="benchmark")
        assert not build_dataset(dataset, jobs=1).failed
        graph = graph_of(dataset)
        shards = [graph.open_tokens(key) for key in graph.partitions]
        num_tokens = sum(of.num_tokens for of in shards)
        each = [graph.output("signatures", key) for key in graph.partitions]
        seconds = sum(measured(of, folder / f"again-{at}") for at, of in enumerate(each))
        join = measured(graph.output("near_duplicates"), folder / "again")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        counts = graph.output("near_duplicates").manifest().counts
        print(f"{num_documents:,} documents, {num_tokens:,} tokens, {bands} bands of {rows}")
        print(f"signatures: {seconds:.1f} s of CPU, {num_tokens / seconds / 1e6:.0f} Mtok/s")
        print(f"join: {join:.1f} s of CPU, {counts}; peak with the build {peak:,.0f} MB")
        alike, found, copies = found_of(graph, shards, copies, dataset.near_duplicates.ngram)
        if environment_of("datatrove_minhash")[0].exists():
            found["datatrove"] = found_by_datatrove(folder, copies)
        for least, most in ((0, 0.5), (0.7, 0.75), (0.75, 0.8), (0.8, 0.9), (0.9, 1.01)):
            of = (alike >= least) & (alike < most)
            shares = (f"{name} {np.array(by)[of].mean():.3f}" for name, by in found.items())
            print(f"similarity from {least} to {most}: {', '.join(shares)} of {of.sum():,} found")


if __name__ == "__main__":
    main()

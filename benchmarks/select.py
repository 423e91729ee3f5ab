"""What a changed threshold costs, a mask over many rows, and scores in another order.

    python -m benchmarks.select [MB_OF_TEXT [ROWS]]

Seconds of processor and wall of this process. A dataset of code in eight files is tokenized once,
then its `select` is changed; an expression is computed over rows in memory; a table from outside is
joined by texts of ids that are shuffled.
"""

import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.corpus import divide, grow, read_code, write_corpora
from benchmarks.programs import GPT2
from tokflow.attributes.config import AttributeConfig
from tokflow.attributes.tables import align
from tokflow.pipeline.declared import make_dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset
from tokflow.raw.files import RawFile
from tokflow.raw.hashes import stamp_of
from tokflow.selection.expression import KnownValues, parse

EXPRESSION = "quality >= 3 and language == 'en' and not copied and num_tokens <= 65536"


@contextmanager
def measured(what):
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what}: {cpu:.2f} s of CPU, {wall:.2f} s of wall")


def change_threshold(folder, megabytes):
    num_bytes = megabytes * 1_000_000
    (folder / "raw").mkdir()
    write_corpora(folder / "raw/*.jsonl", divide(grow(read_code(), num_bytes), num_bytes, 8))
    fields = {"name": "code", "raw": {"files": "raw/*.jsonl"}, "exports": [], "store": "store"}
    fields |= {"tokenizer": {"kind": "huggingface", "name": str(GPT2)}}

    def declared(least):
        select = {"select": f"num_tokens >= {least}"}
        return make_dataset(fields | select, base=folder, where="benchmark")

    assert not build_dataset(declared(20), jobs=1).failed
    graph = graph_of(declared(20))
    num_tokens = sum(graph.open_tokens(key).num_tokens for key in graph.partitions)
    for least in (200, 500):
        with measured(f"another threshold, {num_tokens:,} tokens"):
            assert not build_dataset(declared(least), jobs=1).failed


def mask_rows(num_rows):
    random = np.random.default_rng(0)
    columns = {
        "quality": pa.array(random.random(num_rows) * 5),
        "language": pa.array(["en", "de", "fr", "es"]).take(random.integers(0, 4, num_rows)),
        "copied": pa.array(random.random(num_rows) < 0.1),
        "num_tokens": pa.array(random.integers(1, 100_000, num_rows).astype(np.float64)),
    }
    kinds = {"quality": "number", "language": "text", "copied": "bool", "num_tokens": "number"}
    [documents, rules] = KnownValues(columns), parse(EXPRESSION, kinds).rules
    for _ in range(2):
        with measured(f"mask of {num_rows:,} rows"):
            for rule in rules:
                rule(documents)


def align_ids(folder, num_rows):
    ids = pc.cast(pa.array(np.arange(num_rows)), pa.string())
    shuffled = ids.take(np.random.default_rng(0).permutation(num_rows))
    path = folder / "scores.parquet"
    pq.write_table(pa.table({"id": shuffled, "quality": np.arange(num_rows) / num_rows}), path)
    config = AttributeConfig(files=str(path), key="id", columns={"quality": "number"})
    files = {path.name: RawFile(key=path.name, path=path, stamp=stamp_of(path))}
    for num in (num_rows, num_rows // 100):  # the second finds the table in memory
        of_some = pa.table({"id": ids[:num]})
        shard = SimpleNamespace(kept_columns=lambda of_some=of_some: of_some)  # all that is read
        with measured(f"{num:,} documents of {num_rows:,} scores in another order"):
            assert not align(shard, config, files, "scores", are_own=False).num_without


if __name__ == "__main__":
    megabytes, num_rows = [*map(int, sys.argv[1:]), *(400, 10_000_000)[len(sys.argv) - 1 :]]
    mask_rows(num_rows)
    with tempfile.TemporaryDirectory() as scratch:
        align_ids(Path(scratch), num_rows)
        change_threshold(Path(scratch), megabytes)

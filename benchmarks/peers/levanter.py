"""levanter's TreeCache, built with Ray by `build_or_load_cache` from a BatchTokenizer.

As its configuration of a text dataset builds it, without a BOS before each document. One file is
one shard, and a shard is read by one process.
"""

import json

import ray
import tensorstore as ts
from levanter.data.sharded_datasource import UrlDataSource
from levanter.data.text import BatchTokenizer
from levanter.store.cache import CacheOptions, build_or_load_cache
from transformers import AutoTokenizer

from benchmarks.peers.command import run

TOKENS_PER_READ = 1 << 24


def build(request):
    ray.init(num_cpus=request.processes, include_dashboard=False)
    tokenizer = AutoTokenizer.from_pretrained(request.tokenizer)
    build_or_load_cache(
        str(request.folder / "cache"),
        UrlDataSource([str(request.file)]),
        BatchTokenizer(tokenizer, enforce_bos=False),
        options=CacheOptions.default(),
    )
    ray.shutdown()


def read(folder):
    cache = folder / "cache"
    num_rows = json.loads((cache / "shard_ledger.json").read_text())["total_num_rows"]
    end = int(open_array(cache / "input_ids/offsets")[num_rows].read().result())
    token_ids = open_array(cache / "input_ids/data")
    for start in range(0, end, TOKENS_PER_READ):
        yield token_ids[start : min(start + TOKENS_PER_READ, end)].read().result()


def open_array(path):
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    return ts.open(spec, open=True).result()


if __name__ == "__main__":
    run(build=build, read=read)

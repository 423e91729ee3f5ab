"""datatrove's four stages of near-duplicates, as its example `minhash_deduplication.py` calls them.

    python -m benchmarks.peers.datatrove_minhash RAW_FOLDER EMPTY_FOLDER

With its own defaults: word 5-grams, 14 buckets of 8. Prints seconds of the processor, the bytes of
memory of the largest process, and the ids of the documents that it removes, as JSON.
"""

import json
import resource
import sys
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers.jsonl import JsonlWriter


def main():
    raw, folder = map(Path, sys.argv[1:])
    config, reader = MinhashConfig(), JsonlReader(str(raw))
    num_files = len(list(raw.iterdir()))
    of = {name: str(folder / name) for name in ("signatures", "buckets", "removals", "removed")}
    removed = JsonlWriter(of["removed"], compression=None)
    stages = {
        num_files: [reader, MinhashDedupSignature(of["signatures"], config=config)],
        config.num_buckets: [MinhashDedupBuckets(of["signatures"], of["buckets"], config=config)],
        1: [MinhashDedupCluster(of["buckets"], of["removals"], config=config)],
    }
    last = [reader, MinhashDedupFilter(of["removals"], exclusion_writer=removed)]
    for tasks, pipeline in [*stages.items(), (num_files, last)]:
        LocalPipelineExecutor(pipeline=pipeline, tasks=tasks, workers=1).run()
    used = resource.getrusage(resource.RUSAGE_SELF)
    lines = (json.loads(line) for file in Path(of["removed"]).iterdir() for line in file.open())
    found = {
        "seconds": used.ru_utime + used.ru_stime,
        "peak_bytes": used.ru_maxrss * 1024,
        "removed": [document["id"] for document in lines],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

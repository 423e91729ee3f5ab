"""webdataset's reader and writer, set up as open_lm's loader and its predecessors set them up."""

import json

import numpy as np
import webdataset as wds
from peer_command import each, run


def read(folder, part, data_key="json.gz", seq_len=7):
    """Read the shards that the manifest names, as open_lm does for a training run.

    seq_len: rows of seq_len tokens or fewer are left out, for they make no pair.
    """
    manifest = (folder / part / "manifest.jsonl").read_text()
    lines = [json.loads(line) for line in manifest.split("\n")[:-1]]
    names = [line["shard"] for line in lines]
    pattern = f"{{{','.join(names)}}}" if len(names) > 1 else names[0]
    pipeline = wds.DataPipeline(
        wds.SimpleShardList(f"{folder / part}/{pattern}.tar"),
        wds.tarfile_to_samples(),
        wds.decode(),
        wds.rename(json=data_key, keep=True),
        wds.to_tuple("__key__", "__url__", "json"),
        wds.select(lambda sample: len(sample[2]) > seq_len),
    )
    samples = [*pipeline]
    return {
        "rows": np.array([row for _, _, row in samples], dtype=np.int64),
        "keys": np.array([key for key, _, _ in samples]),
        "shards": np.array([url.rpartition("/")[2] for _, url, _ in samples]),
        "manifest": np.array([line["num_sequences"] for line in lines]),
    }


def write(documents, folder, per_file=4):
    """Write documents as rows with ShardWriter."""
    with wds.ShardWriter(
        f"{folder}/shard_%08d.tar", maxcount=per_file, mtime=0, verbose=0
    ) as writer:
        for number, token_ids in enumerate(each(documents)):
            writer.write(
                {
                    "__key__": f"{number // per_file:08d}_{number % per_file:08d}",
                    "json": token_ids.tolist(),
                }
            )


if __name__ == "__main__":
    run(read=read, write=write)

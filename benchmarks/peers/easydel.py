"""easydel's pipeline of source, tokenize and save, to parquet, without truncation.

It runs in one process and appends no EOS to documents; `read` does, so that the ids can be
compared.
"""

import numpy as np
import pyarrow.parquet as pq
from easydel.data import (
    DatasetConfig,
    Pipeline,
    PipelineConfig,
    SaveStageConfig,
    TokenizerConfig,
    TokenizeStageConfig,
)

from benchmarks.peers.command import EOS_ID, run


def build(request):
    tokenizer = TokenizerConfig(name_or_path=str(request.tokenizer), truncation=False)
    dataset = DatasetConfig(
        data_files=str(request.file),
        type="parquet" if request.file.suffix == ".parquet" else "json",
        tokenizer=tokenizer,
        save_path=str(request.folder / "tokenized"),
        content_field="text",
    )
    config = PipelineConfig(
        datasets=[dataset],
        tokenize=TokenizeStageConfig(num_workers=request.processes),
        save=SaveStageConfig(enabled=True, output_dir=str(request.folder / "tokenized")),
    )
    Pipeline.from_config(config).source().tokenize().save().build()


def read(folder):
    for path in sorted((folder / "tokenized").rglob("*.parquet")):
        for group in pq.ParquetFile(path).iter_batches(1000, columns=["input_ids"]):
            for token_ids in group["input_ids"]:
                yield np.append(token_ids.values.to_numpy(), EOS_ID)


if __name__ == "__main__":
    run(build=build, read=read)

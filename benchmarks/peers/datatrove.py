"""datatrove's DocumentTokenizer, as its example `tokenize_c4.py` calls it, without shuffling.

A task reads whole files, so one file is one task; its tokenizer encodes each batch on all cores.
Several files are as many tasks, in as many processes as asked for; each encodes on one core.
"""

import os

import numpy as np
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader, ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer

from benchmarks.peers.command import EOS, run


def build(request):
    num_tasks = len(request.files)
    if num_tasks > 1:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes share the cores already
    reader = ParquetReader if request.file.suffix == ".parquet" else JsonlReader
    pipeline = [
        reader(str(request.file.parent), glob_pattern=request.file.name),
        DocumentTokenizer(
            output_folder=str(request.folder / "tokenized"),
            tokenizer_name_or_path=str(request.tokenizer / "tokenizer.json"),
            eos_token=EOS,
            shuffle_documents=False,
            batch_size=1000,
        ),
    ]
    logs = str(request.folder / "logs")
    LocalPipelineExecutor(
        pipeline=pipeline,
        tasks=num_tasks,
        workers=min(request.processes, num_tasks),
        logging_dir=logs,
    ).run()


def read(folder):
    for path in sorted((folder / "tokenized").glob("*.ds")):
        yield np.fromfile(path, np.uint16)


if __name__ == "__main__":
    run(build=build, read=read)

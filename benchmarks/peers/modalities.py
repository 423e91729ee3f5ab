"""modalities' index and PackedDataGenerator: `data create_raw_index`, `data pack_encoded_data`.

Through the classes behind these two commands, with the numbers of its getting-started example.
"""

import numpy as np
from modalities.api import create_raw_data_index
from modalities.dataloader.create_packed_data import PackedDataGenerator
from modalities.tokenization.tokenizer_wrapper import PreTrainedHFTokenizer

from benchmarks.peers.command import EOS, run

HEADER = np.dtype([("num_bytes", "<u8"), ("token_bytes", "<u4")])


def build(request):
    index = request.folder / "corpus.idx"
    create_raw_data_index(request.file, index)
    generator = PackedDataGenerator(
        src_path=request.file,
        index_path=index,
        tokenizer=PreTrainedHFTokenizer(str(request.tokenizer)),
        eod_token=EOS,
        number_of_processes=request.processes,
        jq_pattern=".text",
        processing_batch_size=10,
        raw_samples_queue_size=300,
        processed_samples_queue_size=300,
    )
    generator.run(request.folder / "corpus.pbin")


def read(folder):
    path = folder / "corpus.pbin"
    header = np.fromfile(path, HEADER, count=1)[0]
    dtype = np.dtype(f"<u{header['token_bytes']}")
    count = int(header["num_bytes"]) // dtype.itemsize
    yield np.fromfile(path, dtype, count=count, offset=HEADER.itemsize)


if __name__ == "__main__":
    run(build=build, read=read)

"""dolma's MemmapWriter, which writes the token files that OLMo-core reads.

write: `raw_files` and `rows` say where each document comes from; those without tokens, which
dolma's own tokenizer never gives it, are left out.
"""

import itertools

import numpy as np
from dolma.tokenizer.data_types import TokenizerOutput
from dolma.tokenizer.memmap_writer import MemmapWriter
from peer_command import run


def write(documents, folder, *, dtype, raw_files, rows):
    pairs = itertools.pairwise(documents["offsets"].tolist())
    with MemmapWriter(str(folder / "part-0-00000"), np.dtype(dtype), max_tokens=100_000) as writer:
        for (start, stop), raw_file, row in zip(pairs, raw_files, rows, strict=True):
            tokens = documents["token_ids"][start:stop].tolist()
            if tokens:
                document = TokenizerOutput.from_tokens(
                    id=f"{raw_file}:{row}", src=raw_file, loc=row + 1, tokens=tokens
                )
                assert writer.write(document)


if __name__ == "__main__":
    run(write=write)

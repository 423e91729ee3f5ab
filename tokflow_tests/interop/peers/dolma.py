"""dolma's MemmapWriter, which writes the token files that OLMo-core reads.

write: `raw_files` and `rows` say where each document comes from; those without tokens, which
dolma's own tokenizer never gives it, are left out.
"""

import numpy as np
from dolma.tokenizer.data_types import TokenizerOutput
from dolma.tokenizer.memmap_writer import MemmapWriter
from peer_command import each, run


def write(documents, folder, *, dtype, raw_files, rows):
    with MemmapWriter(str(folder / "part-0-00000"), np.dtype(dtype), max_tokens=100_000) as writer:
        for token_ids, raw_file, row in zip(each(documents), raw_files, rows, strict=True):
            if len(token_ids):
                document = TokenizerOutput.from_tokens(
                    id=f"{raw_file}:{row}", src=raw_file, loc=row + 1, tokens=token_ids.tolist()
                )
                assert writer.write(document)


if __name__ == "__main__":
    run(write=write)

"""llm.c's .bin: a header of 1,024 bytes, then token ids, with EOS before each document.

    <prefix>_train_000000.bin, <prefix>_val_000000.bin, ...   whole documents in each file;
                    `validation` is called val unless another part is; see the option `names`
    bytes 0-1023    256 int32, little-endian: magic, version, number of tokens, then zeros
    bytes 1024-     token ids: uint16 behind magic 20240520 and version 1; past 65,536 ids uint32
                    behind 20240801 and 7, as llm.c has it for Llama 3
    lost            where documents begin but for their EOS; the loss mask

Made for llm.c and modded-nanogpt, which looks for the EOS (or BOS) that begins a document and
wants two train files or more. llm.c stops at a file of fewer than processes * B * T + 1 tokens;
the last file of a part may be that short.

Source: karpathy/llm.c, dev/data/data_common.py lines 26-61 at 16635d4 and llmc/dataloader.h lines
61-195 at 077f9bd.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pydantic import Field

from tokflow.exports import Arrays, Export, FileFacts, Format, Layout, Part, damaged_file
from tokflow.exports.options import (
    SHARD_DIGITS,
    FileName,
    FilePrefix,
    ShardOptions,
    check_document_size,
    names_in_files,
    numbered_name,
)
from tokflow.exports.token_files import cut_by_documents, write_numbers
from tokflow.store.config import Size

HEADER_NUMBERS = 256
HEADER_BYTES = 4 * HEADER_NUMBERS

VARIANTS = {"<u2": (20240520, 1), "<u4": (20240801, 7)}
"""Magic and version of the header, by the tokens' dtype."""

MAX_FILE_BYTES = 2**31 - 1
"""llm.c asks for a file's size as a long, which has 32 bits on some systems."""


TOKENS_PER_FILE = 100_000_000
"""Default: shard_size of llm.c's own tool."""


class LlmcOptions(ShardOptions):
    """llm.c, modded-nanogpt: <prefix>_train_<i>.bin, with a header and EOS first."""

    prefix: FilePrefix | None = None
    """Beginning of the files' names; default: the dataset's name."""
    shard_size: Size | None = None
    """Most bytes of tokens in a shard, such as 500MB, and no more than 2 GB; only a longer document
    makes a larger one. Default: 100 million tokens (shard_size of llm.c's tool)."""
    names: dict[str, FileName] = Field(default_factory=dict)
    """Name of a part in file names: `{validation: validation}`. Others have their own name, or val
    of validation."""


def write(part: Part, options: LlmcOptions, folder: Path) -> Iterator[FileFacts]:
    """Write the shards of a part."""
    limit = (MAX_FILE_BYTES - HEADER_BYTES) // part.dtype.itemsize
    for shard in cut_by_documents(
        part, options, usual=TOKENS_PER_FILE, most=limit, digits=SHARD_DIGITS, eos_first=True
    ):
        check_document_size(shard.num_tokens, limit=limit)
        header = np.zeros(HEADER_NUMBERS, dtype="<i4")
        header[:3] = (*VARIANTS[part.dtype.str], shard.num_tokens)
        dataset = part.splits[0].manifest.dataset
        name = _name(part.file_name, shard.number, options, 0, dataset)
        write_numbers(folder / name, shard.tokens, header=header.tobytes())
        yield {}


def _name(part: str, number: int, options: LlmcOptions, _: int, dataset: str) -> str:
    return numbered_name(options.prefix or dataset, part, number, ".bin")


def _load(export: Export, name: str) -> Arrays:
    """Return the token ids of a file.

    Raises: CorruptOutputError for a header that is not the file's.
    """
    with export.stored.open(name) as file:
        magic, version, num_tokens = np.frombuffer(file.read(12), dtype="<i4").tolist()
        num_bytes = file.seek(0, 2)
    dtypes = {variant: dtype for dtype, variant in VARIANTS.items()}
    dtype = dtypes.get((magic, version))
    if dtype is None or num_bytes != HEADER_BYTES + num_tokens * np.dtype(dtype).itemsize:
        raise damaged_file(
            export.folder / name,
            expected="the magic and version of llm.c's files, and as many tokens as it says",
            found=f"{magic}, {version}, and {num_tokens:,} tokens in {num_bytes:,} bytes",
        )
    return {"token_ids": export.stored.numbers(name, dtype, first_byte=HEADER_BYTES)}


FORMAT = Format(
    LlmcOptions,
    lambda options: Layout("stream", ("token_ids",), eos_first=True),
    write,
    _name,
    load=_load,
    header_bytes=HEADER_BYTES,
    file_names=lambda options, parts: names_in_files(parts, options.names),
)

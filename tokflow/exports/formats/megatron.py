"""Megatron's .bin and .idx, which MMapIndexedDataset reads; NeMo reads them too.

    [<prefix>_]<part>_<key>_document.bin    token ids, documents end to end, no header
    [<prefix>_]<part>_<key>_document.idx    all little-endian:
        9 bytes     MMIDIDX and two zeros
        uint64      version, 1
        uint8       dtype of the tokens: 8 is uint16, 4 is int32
        uint64      num_sequences
        uint64      num_documents + 1
        int32       tokens of each sequence              (num_sequences,)
        int64       first byte of each in the .bin       (num_sequences,)
        int64       first sequence of each document, and the end   (num_documents + 1,)
    [<prefix>_]<part>_<key>_loss_mask.bin, .idx    of chats alone, where the option asks for it: the
        same sequences and documents; a uint8 (dtype 1) for each token, 1 at loss tokens
    lost            the loss mask, unless it is asked for

GPTDataset, which pretraining uses, reads no loss mask and attends across documents, also where
`--reset-position-ids` is given: chats have EOS within. IndexedDataset reads the loss mask.

A document is one sequence; one without tokens has none, so that its first sequence is the next
document's. Give the path without .bin to --train-data-path and so on, and EOS as the tokenizer's
end of document.

Source: megatron-core 0.16.1, megatron/core/datasets/indexed_dataset.py lines 44-215 and 905-990;
gpt_dataset.py lines 87-91 for what its cache takes 65,500 to 65,536 ids to be.
"""

import operator
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tokflow.errors import ConfigError
from tokflow.exports import Arrays, Export, FileFacts, Format, Layout, Part, damaged_file
from tokflow.exports.options import FileName, FilePrefix, check_document_size
from tokflow.exports.token_files import write_numbers, write_tokens
from tokflow.store.config import Config
from tokflow.store.tables import offsets_of

HEADER = struct.Struct("<9sQBQQ")
MAGIC, VERSION = b"MMIDIDX\x00\x00", 1

CODES = {"uint16": 8, "int32": 4}
"""Megatron's numbers for the dtypes of tokens."""

MASK_CODE = 1
"""That of uint8."""

UINT16_BELOW = 65_500
"""Vocabularies that preprocess_data.py writes as uint16; larger ones it writes as int32."""

MAX_DOCUMENT_TOKENS = 2**31 - 1
"""Lengths are int32."""


class MegatronOptions(Config):
    """Megatron, NeMo: <part>_text_document.bin and .idx."""

    prefix: FilePrefix | None = None
    """Beginning of the files' names, before the part."""
    key: FileName = "text"
    """The field that Megatron's own tool names in file names (json-keys)."""
    dtype: Literal["auto", "uint16", "int32"] = "auto"
    """auto: uint16 below 65,500 ids, else int32, as Megatron's tool; uint16 up to 65,536 ids is
    what its training wants that is given `--per-dataset-sequences-path`."""
    loss_mask: Annotated[bool, Field(exclude_if=operator.not_)] = False
    """True: of chats a .bin and an .idx more, with a uint8 for each token, 1 at loss tokens."""


def layout(options: MegatronOptions) -> Layout:
    """Return what stands in the files."""
    masks = ("loss_mask",) if options.loss_mask else ()
    keeps = ("token_ids", "offsets", *masks)
    return Layout(made_of="stream", keeps=keeps, attends_across=True)


def write(part: Part, options: MegatronOptions, folder: Path) -> Iterator[FileFacts]:
    """Write .bin and .idx of a part, and those of its loss mask."""
    dtype = np.dtype(_dtype(part, options)).newbyteorder("<")
    stem = folder / _stem(part.name, options)
    lengths = part.document_lengths()
    check_document_size(int(lengths.max()), limit=MAX_DOCUMENT_TOKENS)
    write_tokens(part, Path(f"{stem}.bin"), dtype)
    _write_index(Path(f"{stem}.idx"), lengths, CODES[dtype.name], dtype.itemsize)
    if options.loss_mask and part.has_loss_mask:
        mask = folder / _stem(part.name, options, "loss_mask")
        write_numbers(Path(f"{mask}.bin"), part.stream_loss_mask())
        _write_index(Path(f"{mask}.idx"), lengths, MASK_CODE, 1)
    yield {}


def _write_index(path: Path, lengths: npt.NDArray[np.int64], code: int, itemsize: int) -> None:
    is_some = lengths > 0
    sequences = lengths[is_some].astype("<i4")
    first_bytes = offsets_of(sequences)[:-1] * itemsize
    first_sequences = offsets_of(is_some)
    header = HEADER.pack(MAGIC, VERSION, code, len(sequences), len(first_sequences))
    write_numbers(path, [sequences, first_bytes, first_sequences], header=header)


def _stem(part: str, options: MegatronOptions, of: str = "document") -> str:
    return "_".join(filter(None, [options.prefix, part, options.key, of]))


def _dtype(part: Part, options: MegatronOptions) -> str:
    if options.dtype == "uint16" and part.vocab_size > 2**16:
        raise ConfigError(
            where="dtype",
            expected="int32, for uint16 holds 65,536 ids",
            found=f"uint16 for {part.vocab_size:,} ids",
            remedy="leave `dtype` out",
        )
    if options.dtype == "auto":
        return "uint16" if part.vocab_size < UINT16_BELOW else "int32"
    return options.dtype


def _beside(name: str) -> tuple[str, str]:
    """Return the names of the index and of the loss mask of a file of tokens."""
    return f"{name.removesuffix('.bin')}.idx", f"{name.removesuffix('document.bin')}loss_mask.bin"


def _load(export: Export, name: str) -> Arrays:
    """Return the tokens and offsets of a part.

    Raises: CorruptOutputError for an index that is not Megatron's.
    """
    index, mask = _beside(name)
    path = export.stored.file(index)
    with path.open("rb") as file:
        magic, version, code, num_sequences, num_firsts = HEADER.unpack(file.read(HEADER.size))
        dtypes = {number: name for name, number in CODES.items()}
        if (magic, version) != (MAGIC, VERSION) or code not in dtypes:
            raise damaged_file(
                path,
                expected=f"{MAGIC!r}, version {VERSION} and dtype 4 or 8",
                found=f"{magic!r}, version {version} and dtype {code}",
            )
        num_bytes = HEADER.size + 12 * num_sequences + 8 * num_firsts
        if num_bytes != (found := os.fstat(file.fileno()).st_size):
            raise damaged_file(path, expected=f"{num_bytes:,} bytes", found=f"{found:,}")
        sequences = np.fromfile(file, dtype="<i4", count=num_sequences)
        file.seek(8 * num_sequences, 1)
        first_sequence = np.fromfile(file, dtype="<i8", count=num_firsts)
    token_ids = export.stored.numbers(name, np.dtype(dtypes[code]).newbyteorder("<"))
    lengths = np.diff(offsets_of(sequences)[first_sequence])
    fields = {"token_ids": token_ids, "offsets": offsets_of(lengths)}
    if mask in export.manifest.files:
        fields["loss_mask"] = export.stored.numbers(mask, np.bool_)
    return fields


FORMAT = Format(
    MegatronOptions,
    layout,
    write,
    lambda part, number, options, *_: f"{_stem(part, options)}.bin",
    beside=_beside,
    load=_load,
)

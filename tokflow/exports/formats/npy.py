"""NumPy's .npy, memory-mapped by np.load(..., mmap_mode="r"): a stream, or rows.

layout: stream

    <part>.npy                      token ids, documents end to end, uint16 or uint32; 1-D
    offsets/<part>.npy              int64 (num_documents + 1,): where each document begins
    loss_mask/<part>.npy            of chats alone: bool, beside each token; not with eos: first

layout: sequences

    <part>.npy                      token ids (num_sequences, sequence_length)
    segment_ids/, position_ids/     int32, in files of the same name and shape; 0 is padding
    loss_mask/<part>.npy            of chats alone: bool; of others every token is a loss token

With `shards`, `shard_size` or `prefix` files are numbered and `validation` is
called val, unless another part is: [<prefix>_]train_000000.npy, [<prefix>_]val_000000.npy. Each
then has whole documents, and offsets of its own. build-nanogpt, which takes every file with
`train` in its name, reads {prefix: edufineweb, eos: first}.

    lost    nothing; with eos: first, a chat's loss mask

Source: numpy.lib.format, version 1.0; karpathy/build-nanogpt at 69cb21f, fineweb.py lines 17-83.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tokflow.errors import ConfigError, TokflowError
from tokflow.exports import Arrays, Export, FileFacts, Format, Layout, Part, damaged_file
from tokflow.exports.options import (
    SHARD_DIGITS,
    FileName,
    FilePrefix,
    PartRows,
    ShardOptions,
    names_in_files,
    numbered_name,
)
from tokflow.exports.token_files import (
    cut_by_documents,
    files_of,
    open_hashed,
    sequences_within,
    write_numbers,
)
from tokflow.store.config import Size
from tokflow.store.store import StoredOutput
from tokflow.store.tables import offsets_of

ROW_DTYPES: dict[str, np.dtype[Any]] = {
    "segment_ids": np.dtype(np.int32),
    "position_ids": np.dtype(np.int32),
    "loss_mask": np.dtype(np.bool_),
}
"""Dtypes of the fields beside the token ids of rows, each in a folder of its own."""

HEADER_BYTES = 128
"""Header of any array of one or two dimensions: numpy fills up to a multiple of 64, and leaves
room for a length of 21 digits."""

TOKENS_AT_ONCE = 2**22
"""Tokens of rows written and read at one go."""


class NpyOptions(ShardOptions):
    """NumPy: <part>.npy, 1-D or rows, memory-mapped by np.load."""

    layout: Literal["stream", "sequences"] = "stream"
    """stream: documents end to end, 1-D; sequences: packed rows, 2-D."""
    eos: Literal["last", "first"] = "last"
    """stream: where the EOS of a document stands; first: before it, as build-nanogpt has it."""
    prefix: FilePrefix | None = None
    """Beginning of the names of numbered files; without it names begin with the part."""
    shard_size: Size | None = None
    """Most bytes of token ids in a file, such as 500MB; of a stream, only a longer document makes a
    larger one. Default: one file per part."""
    names: dict[str, FileName] = Field(default_factory=dict)
    """Name of a part in file names: `{validation: validation}`. Others have their own name, or val
    of validation where files are numbered."""

    def check(self) -> None:
        """Refuse options that do not go together."""
        super().check()
        if self.layout == "sequences" and self.eos == "first":
            raise ConfigError(
                where="eos",
                expected="nothing, for it means nothing in `layout: sequences`",
                found=repr(self.eos),
                remedy="leave it out, or name the other layout",
            )

    @property
    def is_numbered(self) -> bool:
        """True where the names of files have a number."""
        return self.prefix is not None or self.is_divided


def layout(options: NpyOptions) -> Layout:
    """Return what stands in the files."""
    if options.layout == "sequences":
        return Layout(made_of="sequences", keeps=("token_ids", *ROW_DTYPES))
    if options.eos == "first":
        return Layout(made_of="stream", keeps=("token_ids", "offsets"), eos_first=True)
    return Layout(made_of="stream", keeps=("token_ids", "offsets", "loss_mask"))


def write(part: Part, options: NpyOptions, folder: Path) -> Iterator[FileFacts]:
    """Write the files of a part."""
    write_part = _write_sequences if options.layout == "sequences" else _write_stream
    return write_part(part, options, folder)


def _write_stream(part: Part, options: NpyOptions, folder: Path) -> Iterator[FileFacts]:
    for shard in cut_by_documents(
        part,
        options,
        digits=SHARD_DIGITS,
        eos_first=options.eos == "first",
        has_loss_mask=options.eos == "last",
    ):
        name = _name(part.file_name, shard.number, options)
        write_npy(folder / name, shard.tokens, shard.num_tokens, part.dtype)
        offsets = offsets_of(shard.lengths)
        write_npy(folder / "offsets" / name, [offsets], len(offsets), offsets.dtype)
        if shard.loss_mask is not None:
            mask_dtype = np.dtype(np.bool_)
            write_npy(folder / "loss_mask" / name, shard.loss_mask, shard.num_tokens, mask_dtype)
        yield {}


def _name(part: str, number: int, options: NpyOptions, *_: Any) -> str:
    if options.is_numbered:
        return numbered_name(options.prefix, part, number, ".npy")
    return f"{part}.npy"


def write_npy(
    path: Path, arrays: Iterable[npt.NDArray[Any]], size: int, dtype: np.dtype[Any]
) -> None:
    """Write the numbers of `arrays`, `size` in all, end to end as one array of `dtype`."""
    header = _header((size,), dtype)
    write_numbers(path, arrays, header=header, dtype=dtype)


def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return what stands in a .npy file before an array."""
    header = BytesIO()
    described = {
        "descr": np.lib.format.dtype_to_descr(dtype.newbyteorder("<")),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(header, described)
    return header.getvalue()


def _write_sequences(part: Part, options: NpyOptions, folder: Path) -> Iterator[FileFacts]:
    dtypes = {"token_ids": part.dtype, **ROW_DTYPES}
    if not part.has_loss_mask:
        del dtypes["loss_mask"]
    sizes = _sizes_of_rows(part.rows, options)
    options.check_num_files(len(sizes), digits=SHARD_DIGITS)
    at_once = sequences_within(TOKENS_AT_ONCE, part.sequence_length)
    for number, batches in files_of(part, sizes, options, at_once):
        name = _name(part.file_name, number, options)
        shape = (sizes[number], part.sequence_length)
        with ExitStack() as stack:
            files = {}
            for field, dtype in dtypes.items():
                place = folder if field == "token_ids" else folder / field
                files[field] = stack.enter_context(open_hashed(place / name))
                files[field].write(_header(shape, dtype))
            for batch in batches:
                for field, file in files.items():
                    file.write(np.ascontiguousarray(getattr(batch, field)))
        yield {}


def _sizes_of_rows(rows: PartRows, options: NpyOptions) -> list[int]:
    row_bytes = rows.dtype.itemsize * rows.sequence_length
    return options.sizes(rows, row_bytes)


def _beside(name: str) -> dict[str, str]:
    """Return the names of the files of other fields beside a file, by field."""
    return {field: f"{field}/{name}" for field in ("offsets", *ROW_DTYPES)}


def load_npy(export: Export, name: str) -> Arrays:
    """Return the fields of a file and of those beside it."""
    fields = {field: of for field, of in _beside(name).items() if of in export.manifest.files}
    export.stored.fetch(of for field, of in fields.items() if field == "offsets")
    fields = {"token_ids": name, **fields}
    return {field: open_npy(export.stored, of) for field, of in fields.items()}


def open_npy(stored: StoredOutput, name: str) -> npt.NDArray[Any]:
    """Return the whole numbers or booleans of a .npy file, memory-mapped read-only, or
    `LazyNumbers`.

    Nothing pickled is ever read, as arrays of objects are.

    Raises: CorruptOutputError.
    """
    path, expected = stored.folder / name, "a .npy file of whole numbers or booleans"
    try:
        with stored.open(name) as file:
            if (version := np.lib.format.read_magic(file)) != (1, 0):
                raise ValueError(f"version {version} of the format")
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
            first_byte = file.tell()
    except (OSError, TokflowError):
        raise
    except Exception as error:  # its header is parsed as Python, which fails in many ways
        found = f"{type(error).__name__}: {error}"
        raise damaged_file(path, expected=expected, found=found) from error
    if dtype.kind not in "iub" or is_fortran:
        raise damaged_file(path, expected=expected, found=f"an array of {dtype}")
    return stored.numbers(name, dtype, first_byte=first_byte, shape=shape)


FORMAT = Format(
    NpyOptions,
    layout,
    write,
    _name,
    beside=lambda name: [*_beside(name).values()],
    load=load_npy,
    header_bytes=HEADER_BYTES,
    file_names=lambda options, parts: names_in_files(
        parts, options.names, is_val=options.is_numbered
    ),
    sizes=lambda rows, options: _sizes_of_rows(rows, options) if options.is_divided else None,
)

"""NumPy's .npy, memory-mapped by np.load(..., mmap_mode="r"): a stream, or rows.

layout: stream

    <part>.npy                      token ids, documents end to end, uint16 or uint32; 1-D
    offsets/<part>.npy              int64 (num_documents + 1,): where each document begins
    loss_mask/<part>.npy            of chats alone: bool, beside each token; not with eos: first

layout: sequences

    <part>.npy                      token ids (num_sequences, sequence_length)
    segment_ids/, position_ids/     int32, in files of the same name and shape; 0 is padding
    loss_mask/<part>.npy            of chats alone: bool; of others every token is learnt

With `tokens_per_file`, `sequences_per_file` or `prefix` files are numbered and `validation` is
called val, unless another part is: [<prefix>_]train_000000.npy, [<prefix>_]val_000000.npy. Each
then has whole documents, and offsets of its own. build-nanogpt, which takes every file with
`train` in its name, reads {prefix: edufineweb, eos: first}.

    lost    nothing; with eos: first, a chat's loss mask

Source: numpy.lib.format, version 1.0; karpathy/build-nanogpt at 69cb21f, fineweb.py lines 17-83.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tokflow.errors import ConfigError, CorruptOutputError
from tokflow.exports.format import (
    Arrays,
    Counts,
    Format,
    Layout,
    counts_of_stream,
)
from tokflow.exports.names import (
    SHARD_DIGITS,
    FileName,
    FilePrefix,
    check_num_files,
    numbered,
    numbered_name,
    renamed,
    val_names,
)
from tokflow.exports.part import Part
from tokflow.exports.row_files import write_files
from tokflow.exports.shards import equal_sizes, rows_within
from tokflow.exports.token_files import cut_by_documents, offsets_of, write_mask, write_numbers
from tokflow.sequences.segments import Sequences
from tokflow.store.config import Config, Count
from tokflow.store.manifest import Manifest

ROW_DTYPES: dict[str, np.dtype[Any]] = {
    "segment_ids": np.dtype(np.int32),
    "position_ids": np.dtype(np.int32),
    "loss_mask": np.dtype(np.bool_),
}
"""Of what stands beside the token ids of rows, in a folder each."""

TOKENS_AT_ONCE = 2**22
"""Of rows: written and read at one go."""


class NpyOptions(Config):
    """Options of the npy format."""

    layout: Literal["stream", "sequences"] = "stream"
    """stream: documents end to end, 1-D; sequences: packed rows, 2-D."""
    eos: Literal["last", "first"] = "last"
    """stream: where the EOS of a document stands; first: before it, as build-nanogpt has it."""
    prefix: FilePrefix | None = None
    """What the names of numbered files begin with; without it names begin with the part."""
    tokens_per_file: Count | None = None
    """stream: tokens of a file at most (shard_size); only a longer document makes a larger one.
    Without it a part is one file."""
    sequences_per_file: Count | None = None
    """sequences: rows of a file. Without it a part is one file."""
    names: dict[str, FileName] = Field(default_factory=dict)
    """What file names call a part: `{validation: validation}`. Others have their own name, or val
    of validation where files are numbered."""

    def check(self) -> None:
        """Refuse options that do not go together."""
        of_other: dict[str, dict[str, str | None]] = {
            "stream": {"sequences_per_file": None},
            "sequences": {"tokens_per_file": None, "eos": "last"},
        }
        for name, default in of_other[self.layout].items():
            if getattr(self, name) != default:
                raise ConfigError(
                    where=name,
                    expected=f"nothing, for it means nothing in `layout: {self.layout}`",
                    found=repr(getattr(self, name)),
                    remedy="leave it out, or name the other layout",
                )

    @property
    def is_numbered(self) -> bool:
        """Whether the names of files have a number."""
        return any((self.prefix, self.tokens_per_file, self.sequences_per_file))

    def part_names(self, parts: Sequence[str]) -> dict[str, str]:
        """Return what file names call each part.

        Raises: ConfigError where `names` does not go with the parts.
        """
        own = val_names(parts) if self.is_numbered else {part: part for part in parts}
        return renamed(own, self.names, where="npy")

    def file_name(self, part: str, parts: Sequence[str], number: int) -> str:
        """Return the name of a part's file."""
        name = self.part_names(parts)[part]
        if not self.is_numbered:
            return f"{name}.npy"
        return numbered_name(self.prefix, name, number, ".npy")


def layout_of_options(options: NpyOptions) -> Layout:
    """Return what stands in the files."""
    if options.layout == "sequences":
        return Layout(made_of="sequences", keeps=("token_ids", *ROW_DTYPES))
    if options.eos == "first":
        return Layout(made_of="stream", keeps=("token_ids", "offsets"), eos_first=True)
    return Layout(made_of="stream", keeps=("token_ids", "offsets", "loss_mask"))


def write(parts: Sequence[Part], options: NpyOptions, folder: Path) -> Counts:
    """Write the files of each part; one without tokens or rows has none."""
    names = [part.name for part in parts]
    write_part = _write_rows if options.layout == "sequences" else _write_stream
    counts: Counts = {}
    for part in parts:
        counts |= write_part(part, names, options, folder)
    return counts


def _write_stream(part: Part, names: Sequence[str], options: NpyOptions, folder: Path) -> Counts:
    num_tokens = num_documents = num_loss_tokens = 0
    keeps_mask = options.eos == "last" and part.has_loss_mask
    for shard in cut_by_documents(
        part,
        tokens_per_file=options.tokens_per_file,
        where="npy",
        digits=SHARD_DIGITS,
        eos_first=options.eos == "first",
        has_loss_mask=keeps_mask,
    ):
        name = options.file_name(part.name, names, shard.number)
        header = npy_header((shard.num_tokens,), part.dtype)
        num_tokens += write_numbers(folder / name, shard.tokens, header=header)
        offsets = offsets_of(shard.lengths)
        header = npy_header(offsets.shape, offsets.dtype)
        write_numbers(_beside(folder, "offsets", name), [offsets], header=header)
        num_documents += len(shard.lengths)
        if keeps_mask:
            header = npy_header((shard.num_tokens,), np.dtype(np.bool_))
            mask = _beside(folder, "loss_mask", name)
            num_loss_tokens += write_mask(mask, shard.loss_mask or (), header=header)
    return counts_of_stream(
        part,
        num_tokens=num_tokens,
        num_documents=num_documents,
        num_loss_tokens=num_loss_tokens if keeps_mask else None,
    )


def _beside(folder: Path, field: str, name: str) -> Path:
    """Return the path of what belongs to each token or document of the file `name`."""
    (folder / field).mkdir(exist_ok=True)
    return folder / field / name


def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return what stands in a .npy file before an array."""
    header = BytesIO()
    described = {
        "descr": np.lib.format.dtype_to_descr(dtype.newbyteorder("<")),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(header, described)
    return header.getvalue()


def _write_rows(part: Part, names: Sequence[str], options: NpyOptions, folder: Path) -> Counts:
    dtypes = {"token_ids": part.dtype, **ROW_DTYPES}
    if not part.has_loss_mask:
        del dtypes["loss_mask"]
    per_file = options.sequences_per_file or max(1, part.num_sequences)
    sizes = equal_sizes(part.num_sequences, per_file)
    check_num_files(len(sizes), digits=SHARD_DIGITS, where="npy", option="sequences_per_file")

    def write_file(number: int, groups: Iterator[Sequences]) -> None:
        name = options.file_name(part.name, names, number)
        shape = (sizes[number], part.sequence_length)
        with ExitStack() as stack:
            files = {}
            for field, dtype in dtypes.items():
                path = folder / name if field == "token_ids" else _beside(folder, field, name)
                files[field] = stack.enter_context(path.open("wb"))
                files[field].write(npy_header(shape, dtype))
            for rows in groups:
                for field, file in files.items():
                    file.write(np.ascontiguousarray(getattr(rows, field)).data.cast("B"))

    at_once = rows_within(TOKENS_AT_ONCE, part.sequence_length)
    return write_files(part, write_file, columns=dtypes, per_file=per_file, at_once=at_once)


def read(folder: Path, manifest: Manifest, part: str) -> Iterator[Arrays]:
    """Yield the fields of a part, memory-mapped: of a stream a file at a time, of rows some
    million tokens."""
    options = NpyOptions(**manifest.config["options"])
    parts = manifest.details["parts"]
    for name in numbered(manifest, lambda number: options.file_name(part, parts, number)):
        others = {
            field: open_npy(folder / field / name)
            for field in ("offsets", *ROW_DTYPES)
            if f"{field}/{name}" in manifest.files
        }
        fields = {"token_ids": open_npy(folder / name), **others}
        if options.layout == "stream":
            yield fields
        else:
            yield from _rows(fields)


def open_npy(path: Path) -> npt.NDArray[Any]:
    """Return the whole numbers or booleans of a .npy file, memory-mapped read-only.

    Nothing pickled is ever read, as arrays of objects are.

    Raises: CorruptOutputError.
    """
    try:
        values: npt.NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # its header is parsed as Python, which fails in many ways
        raise _no_numbers(path, f"{type(error).__name__}: {error}") from error
    if values.dtype.kind not in "iub":
        raise _no_numbers(path, f"an array of {values.dtype}")
    return values


def _no_numbers(path: Path, found: str) -> CorruptOutputError:
    return CorruptOutputError(
        where=path,
        expected="a .npy file of whole numbers or booleans",
        found=found,
        remedy="remove the export's folder and run `tokflow run` again",
    )


def _rows(fields: Arrays) -> Iterator[Arrays]:
    num_rows, length = fields["token_ids"].shape
    at_once = rows_within(TOKENS_AT_ONCE, length)
    for first in range(0, num_rows, at_once):
        some = {name: values[first : first + at_once] for name, values in fields.items()}
        yield {**some, "loss_mask": some.get("loss_mask", some["segment_ids"] != 0)}


FORMAT = Format(
    description="NumPy: <part>.npy, 1-D or rows, memory-mapped by np.load",
    options=NpyOptions,
    layout=layout_of_options,
    write=write,
    read=read,
    check=lambda options, declared: options.part_names(declared.parts),
)

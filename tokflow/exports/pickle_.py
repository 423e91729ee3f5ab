"""PickledTrainerDataset's dumps: pickled lists of token ids. Written, never read.

    <part>/dump-<i>.pkl          pickle of list[list[int]], inner lists sequence_length long
    <part>/dump-meta_data.json   {"dump-0.pkl": {"num_samples": n, "num_tokens": n * length}}
    lost    segment_ids, position_ids, loss_mask, and which tokens are padding

A trainer globs the folder, so each part has one of its own with no other .json in it. Loading a
pickle runs whatever code it names: load only what you made yourself, or take parquet.

Source: the README titled "How to fetch and tokenize the data" (the-stack, data/c) and its
tokenize_data.py. Two of its options stand under `packing` and not beside `format: pickle`:
`packing.min_sample_length`, and seq_length as `packing.sequence_length`. A row of exactly
min_sample_length tokens is kept here, while that script wants more than so many.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tokflow.exports.format import Counts, Format, Layout, fixed
from tokflow.exports.part import Part
from tokflow.exports.row_files import write_files
from tokflow.exports.shards import rows_within
from tokflow.sequences.segments import Sequences
from tokflow.store.config import Config, Count

PROTOCOL, EMPTY_LIST, MARK = b"\x80\x04", b"]", b"("
BININT2, BININT, APPENDS, STOP = b"M", b"J", b"e", b"."
"""Opcodes of pickle's protocol 4, which Python 3.4 and later read. Source: Lib/pickletools.py."""

TOKENS_AT_ONCE = 4_000_000
"""Written at one go, at 3 or 5 bytes each."""


class PickleOptions(Config):
    """Options of the pickle format."""

    sequences_per_file: Count = 10_000
    """Sequences per dump-<i>.pkl (max_dump_size)."""
    pad_id: Annotated[
        int | None,
        Field(ge=-(2**31), le=2**31 - 1),
        "an id that the model knows or ignores, such as -100, written as int32",
    ] = None
    """Token id that fills a row (pad_token); default: as in `packing`."""


def write(parts: Sequence[Part], options: PickleOptions, folder: Path) -> Counts:
    """Write each part into a folder of its own; a part without a row has none."""
    counts: Counts = {}
    for part in parts:
        counts |= _write_part(part, options, folder / part.name)
    return counts


def _write_part(part: Part, options: PickleOptions, folder: Path) -> Counts:
    dumps: dict[str, dict[str, int]] = {}
    if part.num_sequences:
        folder.mkdir()

    def write_dump(number: int, groups: Iterator[Sequences]) -> None:
        name = f"dump-{number}.pkl"
        num_rows = 0
        with (folder / name).open("wb") as file:
            file.write(PROTOCOL + EMPTY_LIST + MARK)
            for rows in groups:
                file.write(_pickled_rows(rows, options).data)
                num_rows += len(rows)
            file.write(APPENDS + STOP)
        num_tokens = num_rows * part.sequence_length
        dumps[name] = {"num_samples": num_rows, "num_tokens": num_tokens}

    counts = write_files(
        part,
        write_dump,
        columns=(),
        per_file=options.sequences_per_file,
        at_once=rows_within(TOKENS_AT_ONCE, part.sequence_length),
    )
    if dumps:
        (folder / "dump-meta_data.json").write_text(json.dumps(dumps, indent=4))
    return counts


def _pickled_rows(made: Sequences, options: PickleOptions) -> npt.NDArray[np.uint8]:
    """Return the opcodes that put rows of ids on a list: `]( M.. M.. ... e` for each.

    Every id takes the same opcode, two or four bytes wide, so that an array can hold them: 0.23 s
    for 16 million ids, where `pickle.dumps` of lists takes 1.6 s and 40 bytes of memory per id.
    """
    token_ids = made.token_ids
    if options.pad_id is not None:
        token_ids = np.where(made.segment_ids != 0, token_ids, np.int64(options.pad_id))
    is_short = token_ids.size == 0 or (token_ids.min() >= 0 and token_ids.max() < 2**16)
    opcode, dtype = (BININT2, "<u2") if is_short else (BININT, "<i4")
    num_rows, length = token_ids.shape
    width = 1 + np.dtype(dtype).itemsize
    out = np.empty((num_rows, 2 + length * width + 1), dtype=np.uint8)
    out[:, :2] = np.frombuffer(EMPTY_LIST + MARK, dtype=np.uint8)
    out[:, -1] = APPENDS[0]
    items = out[:, 2:-1].reshape(num_rows, length, width)
    items[:, :, 0] = opcode[0]
    ids = np.ascontiguousarray(token_ids.astype(dtype))
    items[:, :, 1:] = ids.view(np.uint8).reshape(num_rows, length, width - 1)
    return out


FORMAT = Format(
    description="PickledTrainerDataset: <part>/dump-<i>.pkl and dump-meta_data.json",
    options=PickleOptions,
    layout=fixed(Layout(made_of="sequences", keeps=("token_ids",))),
    write=write,
    read=None,
)

"""PickledTrainerDataset's dumps: pickled lists of token ids. Written, never read.

    <part>/dump-<i>.pkl          pickle of list[list[int]], inner lists sequence_length long
    <part>/dump-meta_data.json   {"dump-0.pkl": {"num_samples": n, "num_tokens": n * length}}
    lost    segment_ids, position_ids, loss_mask, and which tokens are padding

A trainer globs the folder, so each part has one of its own with no other .json in it. Loading a
pickle runs whatever code it names: load only what you made yourself, or take parquet.

Source: the README titled "How to fetch and tokenize the data" (the-stack, data/c) and its
tokenize_data.py. Two of its options stand under `packing` and not beside `format: pickle`:
`packing.min_sample_length`, and seq_length as `packing.sequence_length`, either of which is another
one for validation in `packing.parts`. A row of exactly min_sample_length tokens is kept here, while
that script wants more than so many and, where a row has fewer, leaves out full rows at the end.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tokflow.exports import FileFacts, Format, Layout, Part
from tokflow.exports.options import ByFileOptions, PartRows
from tokflow.exports.token_files import files_of, open_hashed, sequences_within
from tokflow.sequences.segments import Sequences
from tokflow.store.config import Size

PROTOCOL, EMPTY_LIST, MARK = b"\x80\x04", b"]", b"("
BININT2, BININT, APPENDS, STOP = b"M", b"J", b"e", b"."
"""Opcodes of pickle's protocol 4, which Python 3.4 and later read. Source: Lib/pickletools.py."""

TOKENS_AT_ONCE = 4_000_000
"""Written at one go, at 3 or 5 bytes each."""


_WHY_BOUNDED = "an id that the model knows or ignores, such as -100, written as int32"


SEQUENCES_PER_FILE = 10_000
"""Default: max_dump_size."""


class PickleOptions(ByFileOptions):
    """PickledTrainerDataset: <part>/dump-<i>.pkl and dump-meta_data.json."""

    shard_size: Size | None = None
    """Most bytes of a dump-<i>.pkl, such as 500MB; default: 10,000 sequences (max_dump_size)."""
    pad_id: Annotated[int | None, Field(ge=-(2**31), le=2**31 - 1), _WHY_BOUNDED] = None
    """Token id that fills a row (pad_token); default: as in `packing`."""


def write(part: Part, options: PickleOptions, folder: Path) -> Iterator[FileFacts]:
    """Write a part into a folder of its own."""
    at_once = sequences_within(TOKENS_AT_ONCE, part.sequence_length)
    for number, batches in files_of(part, _sizes(part.rows, options), options, at_once):
        num_samples = 0
        with open_hashed(folder / _name(part.name, number)) as file:
            file.write(PROTOCOL + EMPTY_LIST + MARK)
            for batch in batches:
                file.write(_pickled(batch, options))
                num_samples += len(batch)
            file.write(APPENDS + STOP)
        yield {"num_samples": num_samples, "num_tokens": num_samples * part.sequence_length}


def _name(part: str, number: int, *_: Any) -> str:
    return f"{part}/dump-{number}.pkl"


def finish(parts: Sequence[Part], options: PickleOptions, folder: Path) -> None:
    """Write dump-meta_data.json of each part."""
    for part in parts:
        dumps = {Path(_name("", number)).name: facts for number, facts in enumerate(part.files)}
        (folder / part.name / "dump-meta_data.json").write_text(json.dumps(dumps, indent=4))


def _sizes(rows: PartRows, options: PickleOptions) -> list[int]:
    is_short = rows.dtype.itemsize == 2 and 0 <= (options.pad_id or 0) < 2**16
    row_bytes = (3 if is_short else 5) * rows.sequence_length + 3
    return options.sizes(rows, row_bytes, SEQUENCES_PER_FILE)


def _pickled(sequences: Sequences, options: PickleOptions) -> npt.NDArray[np.uint8]:
    """Return the opcodes that put sequences of ids on a list: `]( M.. M.. ... e` for each.

    Every id takes the same opcode, two or four bytes wide, so that an array can hold them: 0.15 s
    for 8 million ids, where `pickle.dumps` of lists takes 1.2 s and 40 bytes of memory per id.
    """
    token_ids = sequences.token_ids
    if options.pad_id is not None:
        token_ids = np.where(sequences.segment_ids != 0, token_ids, np.int64(options.pad_id))
    is_short = token_ids.size == 0 or (token_ids.min() >= 0 and token_ids.max() < 2**16)
    opcode, dtype = (BININT2, "<u2") if is_short else (BININT, "<i4")
    num_sequences, length = token_ids.shape
    record = np.dtype(
        [("list", "S2"), ("items", [("opcode", "S1"), ("id", dtype)], (length,)), ("end", "S1")]
    )
    records = np.empty(num_sequences, dtype=record)
    records["list"] = EMPTY_LIST + MARK
    records["items"]["opcode"] = opcode
    records["items"]["id"] = token_ids
    records["end"] = APPENDS
    return records.view(np.uint8)


FORMAT = Format(
    PickleOptions,
    lambda options: Layout("sequences", ("token_ids",)),
    write,
    _name,
    finish=finish,
    sizes=_sizes,
)

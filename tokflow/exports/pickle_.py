"""PickledTrainerDataset's dumps: pickled lists of token ids. Written, never read.

    <part>/dump-<i>.pkl          pickle of list[list[int]], inner lists sequence_length long
    <part>/dump-meta_data.json   {"dump-0.pkl": {"num_samples": n, "num_tokens": n * length}}
    lost    segment_ids, position_ids, loss_mask, and which tokens are padding

A trainer globs the folder, so each part has one of its own with no other .json in it. Loading a
pickle runs whatever code it names: load only what you made yourself, or take parquet.

Source: the README titled "How to fetch and tokenize the data" (the-stack, data/c) and its
tokenize_data.py, whose option names are kept where tokflow's vocabulary has no other.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokflow.exports.formats import Counts, Format, Layout, counts_of_rows, fixed
from tokflow.exports.options import check_counts
from tokflow.exports.part import Part
from tokflow.sequences import Sequences

PROTOCOL, EMPTY_LIST, MARK = b"\x80\x04", b"]", b"("
BININT2, BININT, APPENDS, STOP = b"M", b"J", b"e", b"."
"""Opcodes of pickle's protocol 4, which Python 3.4 and later read. Source: Lib/pickletools.py."""

TOKENS_AT_ONCE = 4_000_000
"""Written at one go, at 3 or 5 bytes each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PickleOptions:
    """Options of the pickle format."""

    sequences_per_file: int = 10_000
    """Sequences per dump-<i>.pkl (max_dump_size)."""
    pad_id: int | None = None
    """Token id that fills a row (pad_token); default: as in `packing`."""

    def __post_init__(self) -> None:
        check_counts(self, ("sequences_per_file",), where="pickle")


def write(parts: Sequence[Part], options: PickleOptions, folder: Path) -> Counts:
    """Write each part into a folder of its own; a part without a row has none."""
    counts: Counts = {}
    for part in parts:
        dumps: dict[str, dict[str, int]] = {}
        num_tokens = 0
        for rows, is_first in _divided(part, options):
            if is_first:
                (folder / part.name).mkdir(exist_ok=True)
                dumps[f"dump-{len(dumps)}.pkl"] = {"num_samples": 0, "num_tokens": 0}
            name = next(reversed(dumps))
            _append(rows, options, folder / part.name / name, is_first=is_first)
            dumps[name]["num_samples"] += len(rows)
            dumps[name]["num_tokens"] += rows.token_ids.size
            num_tokens += int(np.count_nonzero(rows.segment_ids))
        for name in dumps:
            with (folder / part.name / name).open("ab") as file:
                file.write(APPENDS + STOP)
        if dumps:
            text = json.dumps(dumps, indent=4)
            (folder / part.name / "dump-meta_data.json").write_text(text)
        num_sequences = sum(dump["num_samples"] for dump in dumps.values())
        counts |= counts_of_rows(part, num_sequences=num_sequences, num_tokens=num_tokens)
    return counts


def _divided(part: Part, options: PickleOptions) -> Iterator[tuple[Sequences, bool]]:
    """Yield rows that go to one dump, and whether they are the first in it."""
    num_rows = 0
    at_once = max(1, TOKENS_AT_ONCE // part.sequence_length)
    for made in part.sequences(at_once):
        rest = made
        while len(rest):
            in_dump = num_rows % options.sequences_per_file
            room = options.sequences_per_file - in_dump
            yield rest[:room], in_dump == 0
            num_rows += min(room, len(rest))
            rest = rest[room:]


def _append(rows: Sequences, options: PickleOptions, path: Path, *, is_first: bool) -> None:
    with path.open("ab") as file:
        if is_first:
            file.write(PROTOCOL + EMPTY_LIST + MARK)
        file.write(_pickled_rows(rows, options).data)


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

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
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokflow.errors import ConfigError, four_parts
from tokflow.exports.formats import Counts, Format, counts_of_rows
from tokflow.exports.part import Part

PICKLE_PROTOCOL = 4
"""Fixed, so that every Python writes the same bytes; read by Python 3.4 and later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PickleOptions:
    """Options of the pickle format."""

    sequences_per_file: int = 10_000
    """Sequences per dump-<i>.pkl (max_dump_size)."""
    min_sample_length: int = 1
    """A row with fewer tokens, padding not counted, is left out and reported."""
    pad_id: int | None = None
    """Token id that fills a row (pad_token); default: as in `packing`."""

    def __post_init__(self) -> None:
        for name in ("sequences_per_file", "min_sample_length"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    four_parts(
                        where=f"exports: pickle: {name}",
                        expected="1 or more",
                        found=repr(getattr(self, name)),
                        remedy="raise it",
                    )
                )


def write(parts: Sequence[Part], options: PickleOptions, folder: Path) -> Counts:
    """Write each part into a folder of its own; a part without a row has none."""
    counts: Counts = {}
    for part in parts:
        dumps: dict[str, dict[str, int]] = {}
        num_tokens = 0
        for rows, num_row_tokens in _dumps(part, options):
            (folder / part.name).mkdir(exist_ok=True)
            name = f"dump-{len(dumps)}.pkl"
            with (folder / part.name / name).open("wb") as file:
                pickle.dump(rows.tolist(), file, protocol=PICKLE_PROTOCOL)
            dumps[name] = {"num_samples": len(rows), "num_tokens": rows.size}
            num_tokens += num_row_tokens
        if dumps:
            text = json.dumps(dumps, indent=4)
            (folder / part.name / "dump-meta_data.json").write_text(text)
        num_sequences = sum(dump["num_samples"] for dump in dumps.values())
        counts |= counts_of_rows(part, num_sequences=num_sequences, num_tokens=num_tokens)
    return counts


def _dumps(part: Part, options: PickleOptions) -> Iterator[tuple[npt.NDArray[np.integer], int]]:
    """Yield the rows of each dump and how many of their tokens are no padding."""
    num_rows, min_tokens = options.sequences_per_file, options.min_sample_length
    for made in part.sequences(num_rows, min_tokens=min_tokens):
        rows = made.token_ids
        if options.pad_id is not None:
            rows = np.where(made.loss_mask, rows, np.int64(options.pad_id))
        yield rows, int(np.count_nonzero(made.loss_mask))


FORMAT = Format(
    description="PickledTrainerDataset: <part>/dump-<i>.pkl and dump-meta_data.json",
    made_of="sequences",
    options=PickleOptions,
    write=write,
    read=None,
    keeps=("token_ids",),
    min_tokens=lambda options: int(options.min_sample_length),
)

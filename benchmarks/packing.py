"""How well and how fast each strategy packs documents into rows.

    python -m benchmarks packing

Only lengths are packed, in this process; no token is read or written. They are lognormal, as
those of texts from the web are: half of the documents have less than 403 tokens, the mean is 830.
"""

import time
from dataclasses import dataclass

import numpy as np

from tokflow.sequences.packing import PACKERS, PackingConfig, pack_spans

MEDIAN_TOKENS = 403
SIGMA = 1.2
SEQUENCE_LENGTHS = (2_048, 8_192)
NUM_DOCUMENTS = 10_000_000
STRATEGIES = tuple(PACKERS)


@dataclass(frozen=True, kw_only=True)
class Packing:
    """What one strategy made of the lengths."""

    seconds: float
    """Of one core."""
    num_sequences: int
    """The open row among them."""
    fill_fraction: float
    num_padding: int
    cut_fraction: float
    """Documents that no row has whole."""


def make_lengths(num_documents, *, seed=0):
    """Return the tokens of each document, (num_documents,) int64, at least one."""
    drawn = np.random.default_rng(seed).lognormal(np.log(MEDIAN_TOKENS), SIGMA, num_documents)
    return np.maximum(drawn, 1).astype(np.int64)


def measure_packing(lengths, *, sequence_length, strategies=STRATEGIES):
    """Return what each strategy makes of the lengths, by its name."""
    return {
        name: pack(lengths, PackingConfig(strategy=name, sequence_length=sequence_length))
        for name in strategies
    }


def pack(lengths, config):
    started = time.process_time()
    packed = pack_spans(lengths, config)
    seconds = time.process_time() - started
    num_sequences = int(packed.segments.sequence.max(initial=-1)) + 1
    num_slots, num_tokens = num_sequences * config.stored_length, int(lengths.sum())
    return Packing(
        seconds=seconds,
        num_sequences=num_sequences,
        fill_fraction=num_tokens / max(num_slots, 1),
        num_padding=num_slots - num_tokens,
        cut_fraction=packed.counts.num_cut_documents / max(len(lengths), 1),
    )


def table(found):
    """Yield a line per strategy."""
    headings = ("seconds", "rows", "full", "padding", "cut")
    yield f"  {'':14}" + "".join(f"{heading:>14}" for heading in headings)
    for name, one in found.items():
        yield (
            f"  {name:14}{one.seconds:14.1f}{one.num_sequences:14,}"
            f"{one.fill_fraction:14.3%}{one.num_padding:14,}{one.cut_fraction:14.2%}"
        )

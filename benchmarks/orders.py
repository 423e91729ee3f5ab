"""How random the orders of loaders are, and how long an index takes: ours and those of others.

    python -m benchmarks orders

Statistics are those of `benchmarks.randomness`, of the first 1,048,576 places. A column shows, of
several seeds, the one that is off the most; `worst z` is the worst of all statistics, in standard
deviations, and an order passes where it is below 5.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.peer_programs import environment_of, python
from benchmarks.programs import KINDS, ROOT, absent
from benchmarks.randomness import LIMIT, Statistic, off_the_most, places_looked_at, statistics
from tokflow.loaders.orders import Shuffled, ShuffledBlocks

SIZES = (65_536, 2**20, 1_000_003, 4_000_000, 50_000_000, 10**9)
SEEDS = (1, 2, 3)
LARGEST_TABLE = 50_000_000
BLOCKS = ((64, 64), (1_024, 64), (64, 1_024), (16, 4_096))
BLOCKS_SIZE = 1_000_003
SHOWN = {"sources": "64 in batches of 512", "correlation": "at 1", "steps": "of 1", "pairs": "at 1"}
"""The statistic of each kind that has a column."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """An order that is looked at."""

    name: str
    numbers_at: Callable[[int, int, np.ndarray], tuple[np.ndarray, float]]
    """The numbers that an order of a size and a seed has at places, and the seconds of one core
    that it took."""
    largest: int = 2**63
    peer: str | None = None
    kinds: tuple[str, ...] = KINDS
    """As programs have it: it reads no files."""

    def missing(self):
        """Return why it cannot run here; None where it can."""
        return absent([environment_of(self.peer)] if self.peer else [])


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What was found of one order of one size, over all seeds."""

    shown: dict[str, Statistic]
    """By kind, as SHOWN has them."""
    worst: Statistic
    """Of all statistics the one that is off the most."""
    nanoseconds: float
    """Of one core, for an index of those asked for at once; the least over seeds."""


def shuffled(size, seed, places):
    return timed(Shuffled(size, seed).at, places)


def numpys(size, seed, places):
    return timed(lambda places: np.random.default_rng(seed).permutation(size)[places], places)


def shuffled_blocks(rows_of_a_block, window):
    def numbers_at(size, seed, places):
        return timed(ShuffledBlocks(size, seed, 0, rows_of_a_block, window).at, places)

    return numbers_at


def timed(order, places):
    started = time.process_time()
    return order(places), time.process_time() - started


def of_peer(peer, order):
    """Return the numbers of a peer's order, in its own process and environment."""

    def numbers_at(size, seed, places):
        with tempfile.TemporaryDirectory() as folder:
            asked, answered = Path(folder) / "places.npy", Path(folder) / "numbers.npy"
            np.save(asked, places)
            command = [*python(peer), order, size, seed, asked, answered]
            environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
            ended = subprocess.run(
                [str(word) for word in command],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if ended.returncode:
                raise RuntimeError(f"{peer} {order}: ended by {ended.returncode}\n{ended.stderr}")
            return np.load(answered), float(ended.stdout.split()[-1])

    return numbers_at


WHOLE = (
    Contender(name="tokflow", numbers_at=shuffled),
    Contender(name="numpy", numbers_at=numpys, largest=LARGEST_TABLE),
    Contender(name="grain", numbers_at=of_peer("orders_grain", "shuffle"), peer="orders_grain"),
    Contender(
        name="levanter", numbers_at=of_peer("orders_levanter", "feistel"), peer="orders_levanter"
    ),
)
IN_BLOCKS = (
    *(
        Contender(name=f"tokflow {rows} x {window}", numbers_at=shuffled_blocks(rows, window))
        for rows, window in BLOCKS
    ),
    Contender(
        name="levanter 64 x 64",
        numbers_at=of_peer("orders_levanter", "blocks"),
        peer="orders_levanter",
    ),
)


def measure_orders(contenders, size, *, seeds=SEEDS):
    """Return what is found of each order of a size, by its name; those too large left out."""
    return {one.name: measure_order(one, size, seeds) for one in contenders if size <= one.largest}


def measure_order(contender, size, seeds):
    places = places_looked_at(size)
    found, nanoseconds = [], []
    for seed in seeds:
        numbers, seconds = contender.numbers_at(size, seed, places)
        nanoseconds.append(1e9 * seconds / len(places))

        def order(asked, numbers=numbers):
            return numbers[np.searchsorted(places, asked)]

        found.extend(statistics(order, size))
    return Quality(
        shown={
            kind: off_the_most(one for one in found if (one.kind, one.name) == (kind, name))
            for kind, name in SHOWN.items()
        },
        worst=off_the_most(found),
        nanoseconds=min(nanoseconds),
    )


def table(found):
    """Yield a line per order."""
    headings = (*SHOWN, "worst z", "ns an index", "")
    yield f"  {'':20}" + "".join(f"{heading:>13}" for heading in headings).rstrip()
    for name, one in found.items():
        values = "".join(f"{one.shown[kind].value:13.3f}" for kind in SHOWN)
        verdict = "passes" if abs(one.worst.z) < LIMIT else f"{one.worst.kind} {one.worst.name}"
        yield f"  {name:20}{values}{one.worst.z:13.1f}{one.nanoseconds:13.0f}  {verdict}"

"""Whole programs of a training, drawn at random, against a plain model of them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tokflow.loaders.loader import Loader
from tokflow.loaders.mixed_samples import mix
from tokflow.loaders.orders import MixtureStage, make_stages
from tokflow.loaders.rows import Rows, in_order
from tokflow.loaders.samples import ENDLESS, Samples
from tokflow.split.permutation import Permutation
from tokflow_tests.loaders.row_sources import CountingRows

NAMES = "abcde"


@dataclass(frozen=True)
class Mixed:
    """The arguments of a mixture; a source of one row is as likely as any."""

    sizes: list[int]
    weights: list[list[float]]
    """Of each stage."""
    lengths: list[int]
    """Samples of each stage but the last."""
    seed: int
    max_epochs: list[float | None]

    @property
    def firsts(self) -> list[int]:
        return [sum(self.lengths[:number]) for number in range(len(self.weights))]

    def sources(self) -> dict[str, Rows]:
        return {
            name: in_order(CountingRows(size, sequence_length=2, name=name))
            for name, size in zip(NAMES, self.sizes, strict=False)
        }

    def samples(self) -> Samples:
        named = [dict(zip(NAMES, of, strict=False)) for of in self.weights]
        limits = zip(NAMES, self.max_epochs, strict=False)
        return mix(
            self.sources(),
            weights=named[0],
            stages=list(zip(self.firsts[1:], named[1:], strict=True)),
            seed=self.seed,
            max_epochs={name: limit for name, limit in limits if limit is not None},
        )

    def order(self, num_samples: int) -> list[tuple[int, int]]:
        """The source and the row of so many samples, one after another; fewer where they end."""
        shares = {
            first: [Fraction(str(weight)) for weight in weights]
            for first, weights in zip(self.firsts, self.weights, strict=True)
        }
        rows, taken = list(self.sources().values()), [0] * len(self.sizes)
        orders: dict[tuple[int, int], list[int]] = {}
        found: list[tuple[int, int]] = []
        for stage in make_stages(shares, end=ENDLESS, seed=self.seed):
            for first in range(stage.first, min(stage.end, num_samples), 1_024):
                for source in self.block(stage, first, min(1_024, stage.end - first)):
                    size, limit = self.sizes[source], self.max_epochs[source]
                    if limit is not None and taken[source] == int(limit * size):
                        return found[:num_samples]
                    epoch, place = divmod(taken[source], size)
                    if size > 1 and (source, epoch) not in orders:
                        shuffled = rows[source].shuffled(self.seed * len(rows) + source, epoch)
                        orders[source, epoch] = shuffled[:]["index"].tolist()
                    found.append((source, orders[source, epoch][place] if size > 1 else 0))
                    taken[source] += 1
        return found[:num_samples]

    def block(self, stage: MixtureStage, first: int, size: int) -> Iterator[int]:
        """The sources of the samples of a block."""
        before = stage.rows_after(first - stage.first)
        behind = stage.rows_after(first - stage.first + size)
        in_turn = [
            source
            for source in range(len(self.sizes))
            for _ in range(behind[source] - before[source])
        ]
        for place in Permutation(size, self.seed, f"mixture {first}").at(np.arange(size)):
            yield in_turn[place]


@dataclass(frozen=True)
class Step:
    """What a program does: go on with so many ranks and so large a batch, maybe jump over some
    samples ahead, and read some batches."""

    world_size: int
    batch_size: int
    prefetch: int
    skip: tuple[int, int] | None
    """How far ahead, and how many."""
    num_batches: int


def model(order: list[tuple[int, int]], steps: list[Step]) -> Iterator[list[list[tuple[int, int]]]]:
    """Yield what the ranks get of every batch, one list each."""
    left = list(range(len(order)))
    next_sample = 0
    for step in steps:
        if step.skip is not None:
            first = next_sample + step.skip[0]
            left = [number for number in left if not first <= number < first + step.skip[1]]
        for _ in range(step.num_batches):
            batch, left = left[: step.batch_size], left[step.batch_size :]
            if not batch:
                break
            next_sample = batch[-1] + 1
            edges = [len(batch) * rank // step.world_size for rank in range(step.world_size + 1)]
            yield [
                [order[number] for number in batch[first:last]] for first, last in pairwise(edges)
            ]


def read(samples: Samples, steps: list[Step]) -> Iterator[list[list[tuple[int, int]]]]:
    """Yield the same from loaders, which hand their state on as a text from step to step."""
    state = None
    for step in steps:
        loaders = [
            Loader(
                samples,
                batch_size=step.batch_size,
                rank=rank,
                world_size=step.world_size,
                prefetch=step.prefetch,
            )
            for rank in range(step.world_size)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(state))
            if step.skip is not None:
                first = loader.state_dict()["samples"] + step.skip[0]
                ends = (min(end, len(samples)) for end in (first, first + step.skip[1]))
                loader.skip(range(*ends))
        for _ in range(step.num_batches):
            batches = [next(loader, None) for loader in loaders]
            if batches[0] is None:
                assert batches == [None] * step.world_size
                break
            yield [
                list(zip(batch["source"].tolist(), batch["index"].tolist(), strict=True))
                for batch in batches
            ]
        states = {json.dumps(loader.state_dict()) for loader in loaders}
        assert len(states) == 1
        [state] = states
        for loader in loaders:
            loader.close()


WEIGHTS = st.sampled_from([0, 1e-9, 0.01, 0.3, 1, 1, 2, 7])


@st.composite
def mixtures(draw: st.DrawFn) -> Mixed:
    num = draw(st.integers(1, 5))
    num_stages = draw(st.integers(1, 4))
    weights = st.lists(WEIGHTS, min_size=num, max_size=num).filter(any)
    return Mixed(
        sizes=draw(st.lists(st.sampled_from([1, 40, 300, 2_000]), min_size=num, max_size=num)),
        weights=draw(st.lists(weights, min_size=num_stages, max_size=num_stages)),
        lengths=[
            draw(st.sampled_from([1, 100, 1_023, 1_024, 1_500])) for _ in range(num_stages - 1)
        ],
        seed=draw(st.integers(0, 3)),
        max_epochs=[draw(st.sampled_from([*8 * [None], 1, 2.5, 40])) for _ in range(num)],
    )


STEPS = st.builds(
    Step,
    world_size=st.sampled_from([1, 2, 3, 8]),
    batch_size=st.sampled_from([9, 64, 700, 1_500]),
    prefetch=st.sampled_from([0, 0, 2]),
    skip=st.none() | st.tuples(st.sampled_from([0, 1, 900]), st.sampled_from([1, 30, 1_500])),
    num_batches=st.sampled_from([0, 1, 1, 2, 3]),
)


@settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate])
@given(mixtures(), st.lists(STEPS, min_size=1, max_size=3))
def test_a_training_reads_what_a_plain_model_of_it_reads(mixed: Mixed, steps: list[Step]):
    num_read = sum(step.batch_size * step.num_batches for step in steps)
    num_skipped = sum(sum(step.skip) for step in steps if step.skip is not None)
    order = mixed.order(num_read + num_skipped)

    found = list(read(mixed.samples(), steps))

    assert found == list(model(order, steps))

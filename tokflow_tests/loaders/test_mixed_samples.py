"""Mixtures: the samples of `mix`, and the stages that they are dealt out by."""

import json
import pickle
import random
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tokflow.errors import ConfigError
from tokflow.loaders.loader import Loader
from tokflow.loaders.mixed_samples import MAX_BLOCKS, MixedSamples, SourceUse, mix
from tokflow.loaders.orders import BLOCK, MixtureStage, make_stages, shuffled_block
from tokflow.loaders.rows import Rows, in_order
from tokflow.loaders.samples import ENDLESS
from tokflow_tests.loaders.row_sources import CountingRows


def rows_of(**sizes: int) -> dict[str, Rows]:
    """Rows of 4 tokens; those of the second source begin at token 10**9, and so on."""
    return {
        name: in_order(CountingRows(size, name=name, first=10**9 * number))
        for number, (name, size) in enumerate(sizes.items())
    }


def dealt(mixed: MixedSamples, num_samples: int, first: int = 0) -> list[tuple[int, int]]:
    """The source and the row of samples, read in batches of unlike sizes."""
    found: list[tuple[int, int]] = []
    while len(found) < num_samples:
        size = min(1 + len(found) % 700, num_samples - len(found))
        batch = mixed.gather(first + np.arange(len(found), len(found) + size))
        found += zip(batch["source"].tolist(), batch["index"].tolist(), strict=True)
    return found


TWO = rows_of(web=1_000, code=50)


def test_samples_of_a_seed_are_the_same_forever():
    mixed = mix(TWO, weights={"web": 7, "code": 3}, stages=[(1_500, {"web": 1, "code": 1})], seed=1)

    sources, rows = zip(*dealt(mixed, 8), strict=True)
    assert sources == (0, 0, 0, 0, 0, 1, 1, 0)
    assert rows == (380, 702, 109, 820, 782, 44, 31, 891)
    sources, rows = zip(*dealt(mixed, 8, first=10**12), strict=True)
    assert sources == (0, 0, 0, 1, 1, 1, 0, 0)
    assert rows == (386, 926, 111, 0, 48, 21, 702, 2)


def test_a_batch_has_the_fields_of_its_sources_and_the_number_of_the_source():
    mixed = mix(TWO, weights={"web": 7, "code": 3})

    batch = mixed.gather(np.arange(64))

    assert {name: (str(of.dtype), of.shape) for name, of in batch.items()} == {
        "input_ids": ("int64", (64, 4)),
        "labels": ("int64", (64, 4)),
        "index": ("int64", (64,)),
        "source": ("int32", (64,)),
    }
    assert all(values.flags.c_contiguous for values in batch.values())
    is_code = batch["source"] == 1
    assert (batch["input_ids"][:, 0] == batch["index"] * 4 + is_code * 10**9).all()
    empty = mixed.gather(np.arange(0))
    assert {name: of.shape[1:] for name, of in empty.items()} == {
        name: of.shape[1:] for name, of in batch.items()
    }


def test_few_blocks_of_a_mixture_are_kept():
    mixed = mix(TWO, weights={"web": 7, "code": 3})

    mixed.at(np.arange(MAX_BLOCKS + 4) * BLOCK)

    assert 0 < len(mixed._blocks) <= MAX_BLOCKS


def test_weights_count_tokens_and_short_rows_are_more():
    half_full = in_order(HalfFull(500, name="half"))
    mixed = mix({"full": TWO["web"], "half": half_full}, weights={"full": 0.1, "half": 0.1})

    uses = mixed.epochs(3 * BLOCK)

    assert uses == {"full": SourceUse(1_024, 1.024), "half": SourceUse(2_048, 4.096)}


@pytest.mark.parametrize("first", [2 * BLOCK, 2 * BLOCK + 1, 3 * BLOCK - 1])
def test_a_stage_added_later_leaves_the_samples_before_its_block(first: int):
    before = mix(TWO, weights={"web": 7, "code": 3}, seed=1)
    behind = mix(
        TWO, weights={"web": 7, "code": 3}, stages=[(first, {"web": 0, "code": 1})], seed=1
    )

    assert dealt(behind, 2 * BLOCK) == dealt(before, 2 * BLOCK)
    assert behind.identity["stages"][1]["decides_from"] == 2 * BLOCK
    through = dealt(behind, first + 100)
    assert {source for source, _ in through[first:]} == {1}
    assert abs(Counter(source for source, _ in through[:first])[0] - 0.7 * first) < 1


def test_stages_that_have_not_begun_may_be_others_where_a_training_goes_on():
    weights, later = {"web": 7, "code": 3}, {"web": 1, "code": 1}
    planned = mix(TWO, weights=weights, stages=[(np.int64(5_000), later)], seed=np.int64(0))
    one = Loader(planned, batch_size=2 * BLOCK)
    next(one)
    state = one.state_dict()

    for stages in ([], [(2 * BLOCK, later)], [(3 * BLOCK - 1, later), (9_999, weights)]):
        other = Loader(mix(TWO, weights=weights, stages=stages), batch_size=8)
        other.load_state_dict(state)
        expected = mix(TWO, weights=weights, stages=stages).gather(2 * BLOCK + np.arange(8))
        assert next(other)["index"].tolist() == expected["index"].tolist()

    begun = Loader(mix(TWO, weights=weights, stages=[(2 * BLOCK - 1, later)]), batch_size=8)
    with pytest.raises(ConfigError, match=r"a state of stages\[1\].first_sample 2047, found None"):
        begun.load_state_dict(state)
    reweighed = Loader(mix(TWO, weights=later), batch_size=8)
    with pytest.raises(
        ConfigError, match=r"weights.web 1/2, found 7/10; keep the stages of the first 2,048"
    ):
        reweighed.load_state_dict(state)


@pytest.mark.parametrize("num_samples", [1, 1_100, 1_600, 2_525])
def test_a_stage_too_early_is_refused_with_a_sample_that_it_may_begin_at(num_samples: int):
    weights, later, first = {"web": 7, "code": 3}, {"web": 1, "code": 1}, num_samples + 1_024
    begun = [(1_500, later)] if num_samples > 1_500 else []
    one = Loader(mix(TWO, weights=weights, stages=begun), batch_size=num_samples)
    next(one)

    early, allowed = (
        Loader(mix(TWO, weights=weights, stages=[*begun, (at, weights)]), batch_size=8)
        for at in (num_samples, first)
    )

    message = f"others may begin at sample {first:,} and later, .* blocks of 1,024"
    with pytest.raises(ConfigError, match=message):
        early.load_state_dict(one.state_dict())
    allowed.load_state_dict(one.state_dict())


@pytest.mark.parametrize("max_epochs", [1, 2.5, {"code": 4}, {"web": 3, "code": 40}])
def test_samples_end_before_a_row_is_one_too_many(max_epochs: Any):
    weights = {"web": 7, "code": 3}
    stages = [(2_000, {"web": 2, "code": 0}), (2_500, weights)]
    most = max_epochs if isinstance(max_epochs, dict) else dict.fromkeys(TWO, max_epochs)

    mixed = mix(TWO, weights=weights, stages=stages, max_epochs=max_epochs)

    endless = mix(TWO, weights=weights, stages=stages)
    assert len(endless) == ENDLESS
    assert dealt(mixed, len(mixed)) == dealt(endless, len(mixed))
    last, one_more = mixed.epochs(len(mixed)), endless.epochs(len(mixed) + 1)
    assert all(last[name].epochs <= epochs for name, epochs in most.items())
    assert any(one_more[name].epochs > epochs for name, epochs in most.items())
    with pytest.raises(IndexError, match=f"from 0 to {len(mixed) - 1:,}"):
        mixed.gather(np.array([len(mixed)]))


def test_more_samples_than_max_epochs_allow_are_refused_with_the_arithmetic():
    mixed = mix(TWO, weights={"web": 7, "code": 3}, max_epochs={"code": 4}, num_samples=650)
    assert len(mixed) == 650

    with pytest.raises(ConfigError) as caught:
        mix(TWO, weights={"web": 7, "code": 3}, max_epochs={"code": 4}, num_samples=10_240)

    assert (caught.value.where, caught.value.found) == (
        "mix: num_samples",
        "10,240, which take 3,072: 61.44 epochs",
    )


def test_an_identity_is_of_what_decides_the_samples_alone():
    weights = {"web": 7, "code": 3}
    one = mix(TWO, weights=weights).identity

    assert json.loads(json.dumps(one)) == one
    assert mix(TWO, weights={"web": 0.7, "code": 0.3}).identity == one
    assert mix(TWO, weights=weights, max_epochs=2, num_samples=20).identity == one
    others = [
        mix(TWO, weights={"web": 6, "code": 3}),
        mix(TWO, weights=weights, seed=1),
        mix(TWO, weights=weights, blocks=10),
        mix(TWO, weights=weights, stages=[(10, weights)]),
        mix(rows_of(web=1_000, code=51), weights=weights),
    ]
    assert all(other.identity != one for other in others)


def test_a_mixture_of_blocks_reads_each_source_by_blocks():
    mixed = mix(TWO, weights={"web": 1, "code": 0}, blocks=100, window=2, seed=1)

    rows = [row for _, row in dealt(mixed, 1_000)]

    assert sorted(rows) == list(range(1_000))
    assert len({row // 100 for row in rows[:200]}) == 2


def test_a_mixture_is_the_same_in_another_process():
    mixed = mix(TWO, weights={"web": 7, "code": 3}, seed=1)

    assert dealt(pickle.loads(pickle.dumps(mixed)), 100) == dealt(mixed, 100)


@dataclass(frozen=True)
class HalfFull(CountingRows):
    """Rows of which every other token is padding."""

    @property
    def num_tokens(self) -> int:
        return self.num_rows * self.sequence_length // 2


LONG = in_order(CountingRows(5, sequence_length=8))
MADE_BY_A, MADE_BY_B = (in_order(CountingRows(5, tokenizer=of)) for of in "ab")
OTHER_FIELDS = in_order(CountingRows(5, fields=("input_ids", "index")))
BOTH = {"web": 1, "code": 1}


@pytest.mark.parametrize(
    ("changed", "where", "found"),
    [
        ({"sources": {}}, "sources", "none"),
        ({"sources": [TWO["web"]]}, "sources", "[<Rows of web"),
        ({"sources": {**TWO, "code": LONG}}, "sources.code", "8"),
        ({"sources": {**TWO, "code": OTHER_FIELDS}}, "sources.code", "index, input_ids"),
        ({"sources": {"web": MADE_BY_A, "code": MADE_BY_B}}, "sources.code", "b"),
        ({"sources": {**TWO, "code": TWO["code"].epochs(1)}}, "sources.code", "Epochs"),
        ({"sources": {**TWO, "web": TWO["web"].shuffled(1)}}, "sources.web", "rows that are sh"),
        ({"weights": None}, "weights", "none"),
        ({"weights": [7, 3]}, "weights and stages", "(0, [7, 3])"),
        ({"weights": None, "stages": [(5, BOTH)]}, "weights", "stages from sample 5 on"),
        ({"weights": {"web": 1, "coed": 2}}, "weights", "'coed'"),
        ({"weights": {"web": 1}}, "weights", "web"),
        ({"weights": {"web": 1, "code": -1}}, "weights.code", "-1"),
        ({"weights": {"web": 1, "code": float("nan")}}, "weights.code", "nan"),
        ({"weights": {"web": 1, "code": float("inf")}}, "weights.code", "inf"),
        ({"weights": {"web": 1, "code": "3"}}, "weights.code", "'3'"),
        ({"weights": {"web": 0, "code": 0}}, "weights", "none"),
        ({"stages": {9: BOTH}}, "weights and stages", "{9:"),
        ({"stages": (9, BOTH)}, "weights and stages", "9"),
        ({"stages": [(9, [1, 1])]}, "weights and stages", "(9, [1, 1])"),
        ({"stages": [(9, BOTH), (9, BOTH)]}, "stages", "9 behind 9"),
        ({"stages": [(9.5, BOTH)]}, "stages", "9.5"),
        ({"stages": [(0, BOTH)]}, "stages", "0 behind 0"),
        ({"stages": [(9, {"web": 1})]}, "stages, sample 9", "web"),
        ({"max_epochs": {"cod": 1}}, "max_epochs", "'cod'"),
        ({"max_epochs": -1}, "max_epochs.web", "-1"),
        ({"max_epochs": {"code": 0}}, "max_epochs.code", "0 epochs"),
        ({"max_epochs": 1e-9, "stages": [(4096, BOTH)]}, "max_epochs.web", "1e-09 epochs"),
        ({"num_samples": 0}, "num_samples", "0"),
        ({"num_samples": 1e6}, "num_samples", "1000000.0"),
    ],
)
def test_what_cannot_be_mixed_is_refused(changed: dict[str, Any], where: str, found: str):
    arguments = {"sources": TWO, "weights": BOTH, **changed}
    with pytest.raises(ConfigError) as raised:
        mix(arguments.pop("sources"), **arguments)

    assert raised.value.where == f"mix: {where}"
    assert raised.value.found.startswith(found)


def test_a_source_without_a_weight_may_have_no_epoch():
    mixed = mix(TWO, weights={"web": 1, "code": 0}, max_epochs={"web": 2, "code": 0})

    assert len(mixed) == 2 * len(TWO["web"])


def one_stage(*shares: int | Fraction, seed: int = 1) -> MixtureStage:
    [stage] = make_stages({0: [Fraction(share) for share in shares]}, end=ENDLESS, seed=seed)
    return stage


def random_shares(draw: random.Random, num_sources: int) -> list[Fraction]:
    """Shares of one size, or from 1 to a billionth, some of them 0."""
    sizes = draw.choice((1, 10**9))
    shares = [
        draw.choice((1, 1, 1, 0)) * Fraction(draw.randrange(1, 10**6), draw.choice((1, sizes)))
        for _ in range(num_sources)
    ]
    return shares if any(shares) else random_shares(draw, num_sources)


def test_rows_are_divided_by_the_shares_and_small_sources_have_theirs():
    stage = one_stage(70, 29, 1)

    assert stage.rows_after(10) == [7, 3, 0]
    assert stage.rows_after(100) == [70, 29, 1]
    assert stage.rows_after(10**12) == [7 * 10**11, 29 * 10**10, 10**10]
    assert one_stage(1, Fraction(1, 10**9), 0).rows_after(10**12) == [999_999_999_000, 1_000, 0]


@pytest.mark.parametrize("num_sources", [1, 2, 3, 5, 12])
def test_no_source_is_a_row_off_its_share_after_a_cycle_three_within_and_five_later(
    num_sources: int,
):
    draw = random.Random(num_sources)
    at_end = within = in_later = 0.0
    for seed in range(20):
        shares = random_shares(draw, num_sources)
        stage = one_stage(*shares)
        _, later = make_stages({0: shares, 999: shares}, end=ENDLESS, seed=seed)
        for _ in range(20):
            cycles = draw.randrange(draw.choice((2, 10**6))) * stage.cycle

            at_end = max(at_end, most_off(stage, cycles, shares))
            within = max(within, most_off(stage, cycles + draw.randrange(stage.cycle), shares))
            in_later = max(in_later, most_off(later, draw.randrange(10**9), shares))

        assert stage.cycle % BLOCK == 0
        assert all(rows >= 2 for rows in stage.rows_after(stage.cycle) if rows)
    assert at_end < 1
    assert within < 3
    assert in_later < 5


def most_off(stage: MixtureStage, num_samples: int, shares: list[Fraction]) -> float:
    """Return how many rows the source that is the most off its share has too many or too few."""
    rows = stage.rows_after(num_samples)
    assert sum(rows) == num_samples
    assert not any(num for num, share in zip(rows, shares, strict=True) if not share)
    wanted = [num_samples * share / sum(shares) for share in shares]
    return max(float(abs(num - of)) for num, of in zip(rows, wanted, strict=True))


def test_one_sample_more_is_one_row_more_of_one_source():
    draw = random.Random(1)
    for num_sources in (1, 2, 5, 30):
        stage = one_stage(*random_shares(draw, num_sources))
        first = draw.randrange(10**12)

        counts = [stage.rows_after(first + num) for num in range(300)]

        for before, behind in pairwise(counts):
            assert sorted(np.subtract(behind, before)) == [0] * (num_sources - 1) + [1]


def test_a_block_has_the_rows_of_its_stage_shuffled_and_each_source_in_turn():
    stage = one_stage(5, 3, 2)

    sources, rows = shuffled_block(stage, 7, seed=1)

    before, behind = stage.rows_after(7 * BLOCK), stage.rows_after(8 * BLOCK)
    for source in range(3):
        found = rows[sources == source].tolist()
        assert found == list(range(before[source], behind[source]))
    neighbours = np.mean(sources[1:] == sources[:-1])
    assert 0.3 < neighbours < 0.46  # 0.38 of them by chance
    assert sources.tolist() != shuffled_block(stage, 8, seed=1)[0].tolist()
    assert sources.tolist() != shuffled_block(stage, 7, seed=2)[0].tolist()

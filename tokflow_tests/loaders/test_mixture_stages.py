import random
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from tokflow.loaders.orders import BLOCK, MixtureStage, make_stages, shuffled_block
from tokflow.loaders.samples import ENDLESS


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
def test_no_source_is_a_row_off_its_share_at_the_end_of_a_cycle_and_three_within(num_sources: int):
    draw = random.Random(num_sources)
    at_end = within = 0.0
    for _ in range(20):
        shares = random_shares(draw, num_sources)
        stage = one_stage(*shares)
        for _ in range(20):
            cycles = draw.randrange(draw.choice((2, 10**6))) * stage.cycle

            at_end = max(at_end, most_off(stage, cycles, shares))
            within = max(within, most_off(stage, cycles + draw.randrange(stage.cycle), shares))

        assert stage.cycle % BLOCK == 0
        assert all(rows >= 2 for rows in stage.rows_after(stage.cycle) if rows)
    assert at_end < 1
    assert within < 3


def most_off(stage: MixtureStage, num_samples: int, shares: list[Fraction]) -> float:
    """Return how many rows the source that is the most off its share has too many or too few."""
    rows = stage.rows_after(num_samples)
    assert sum(rows) == num_samples
    assert not any(num for num, share in zip(rows, shares, strict=True) if not share)
    wanted = [num_samples * share / sum(shares) for share in shares]
    return max(float(abs(num - of)) for num, of in zip(rows, wanted, strict=True))


@pytest.mark.parametrize("num_sources", [2, 5, 30])
def test_in_a_later_stage_a_source_is_never_five_rows_off_its_share(num_sources: int):
    draw = random.Random(num_sources)
    for seed in range(20):
        shares = random_shares(draw, num_sources)
        _, stage = make_stages({0: shares, 999: shares}, end=ENDLESS, seed=seed)
        num_samples = draw.randrange(10**9)

        rows = stage.rows_after(num_samples)

        assert sum(rows) == num_samples
        wanted = [num_samples * share / sum(shares) for share in shares]
        assert all(abs(num - of) < 5 for num, of in zip(rows, wanted, strict=True))


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

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tokflow.loaders.loader import Loader
from tokflow.loaders.mixed_samples import mix
from tokflow.loaders.rows import in_order
from tokflow.loaders.samples import integer, optional
from tokflow_tests.loaders.row_sources import CountingStream

ROWS = in_order(CountingStream(100))

SEEDED: dict[str, Callable[[Any], Any]] = {
    "shuffled": lambda seed: ROWS.shuffled(seed).epochs(),
    "shuffled blocks": lambda seed: ROWS.shuffled(seed, blocks=4).epochs(),
    "epochs": lambda seed: ROWS.epochs(seed),
    "random windows": lambda seed: ROWS.random_windows(seed),
    "mixture": lambda seed: mix({"a": ROWS}, weights={"a": 1}, seed=seed),
    "loader": lambda seed: Loader(ROWS, batch_size=4, seed=seed).samples,
}


def test_integers_of_any_library_are_ints():
    found = [integer("epoch", number) for number in (-3, np.int64(7), np.uint8(7), 2**70)]

    assert found == [-3, 7, 7, 2**70]
    assert {type(number) for number in found} == {int}
    assert optional(integer, "blocks", None) is None


@pytest.mark.parametrize("kind", SEEDED)
def test_a_seed_of_numpy_is_that_of_python(kind: str):
    numbers = np.arange(50)

    samples = SEEDED[kind](np.int64(5))

    assert json.dumps(samples.identity) == json.dumps(SEEDED[kind](5).identity)
    assert (
        samples.gather(numbers)["index"].tolist()
        == SEEDED[kind](5).gather(numbers)["index"].tolist()
    )

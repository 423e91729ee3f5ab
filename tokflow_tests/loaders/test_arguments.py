import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tokflow.errors import ConfigError
from tokflow.loaders.loader import Loader
from tokflow.loaders.mixed_samples import mix
from tokflow.loaders.rows import in_order
from tokflow.loaders.samples import boolean, integer, optional
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


def test_a_text_is_no_boolean():
    assert [boolean("drop_last", given) for given in (True, np.False_)] == [True, False]
    for wrong in ("no", 1, None):
        with pytest.raises(ConfigError, match="drop_last: expected True or False, found"):
            boolean("drop_last", wrong)


@pytest.mark.parametrize("seed", [1.0, 1.5, "1", True, np.True_, [1], np.float64(1)])
@pytest.mark.parametrize("kind", SEEDED)
def test_a_seed_that_is_no_integer_is_refused(kind: str, seed: Any):
    with pytest.raises(ConfigError, match="seed: expected an integer, found"):
        SEEDED[kind](seed)


@pytest.mark.parametrize("kind", SEEDED)
def test_a_seed_of_numpy_is_that_of_python(kind: str):
    numbers = np.arange(50)

    samples = SEEDED[kind](np.int64(5))

    assert json.dumps(samples.identity) == json.dumps(SEEDED[kind](5).identity)
    assert (
        samples.gather(numbers)["index"].tolist()
        == SEEDED[kind](5).gather(numbers)["index"].tolist()
    )

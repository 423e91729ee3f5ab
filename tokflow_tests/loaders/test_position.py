import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from tokflow.errors import ConfigError
from tokflow.loaders.mixed_samples import mix
from tokflow.loaders.position import Position, position_of
from tokflow.loaders.rows import in_order
from tokflow.loaders.samples import Samples
from tokflow_tests.loaders.row_sources import CountingRows


def samples_of(seed: int | None = 1, num_epochs: int | None = None, **source: Any) -> Samples:
    return in_order(CountingRows(**{"num_rows": 10, **source})).epochs(seed, num_epochs=num_epochs)


def test_ranges_that_touch_are_one_and_an_empty_one_is_none():
    position = Position()
    for samples in (range(8, 10), range(2, 4), range(4, 8), range(5, 6), range(20, 20)):
        position = position.skip(samples, length=20)

    assert position.skipped == (range(2, 10),)


@pytest.mark.parametrize(
    "wrong", [range(4, 9), range(15, 21), range(5, 9, 2), range(9, 5, -1), 7, [5, 6], (5, 9)]
)
def test_samples_that_cannot_be_skipped_are_refused(wrong: Any):
    with pytest.raises(ConfigError) as raised:
        Position(5).skip(wrong, length=20)

    assert (raised.value.where, raised.value.found) == ("skip", repr(wrong))


def test_a_state_is_json_and_tells_the_position():
    position = Position(10**12, (range(2, 4), range(10**13, 10**14)))

    state = position.state(samples_of())

    assert state["samples"] == 10**12
    assert state["skipped"] == [[2, 4], [10**13, 10**14]]
    assert position_of(json.loads(json.dumps(state)), samples_of()) == position


def test_a_state_of_a_source_with_another_name_is_taken():
    state = Position(5).state(samples_of())
    state["order"] = state["order"].replace('"counting"', '"the same rows elsewhere"')

    assert position_of(state, samples_of()) == Position(5)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (
            samples_of(name="code", seed=2),
            r"state of sources\[0\].output code0, found counting0; open the rows that it is of "
            r"\(name='counting', output='counting0', sequence_length=4\), or begin",
        ),
        (
            samples_of(sequence_length=8),
            r"state of sources\[0\].sequence_length 8, found 4; open .* sequence_length=4\), or",
        ),
        (samples_of(num_rows=9), r"state of sources\[0\].fingerprint counting:9.*counting:10"),
        (samples_of(seed=2), "expected a state of seed 2, found 1; make the loader as it was"),
        (samples_of(seed=None), "expected a state of seed None, found 1"),
        (samples_of(num_epochs=2), "expected a state of samples from 0 to 20, found 21"),
    ],
)
def test_a_state_of_other_samples_is_refused_by_name(samples: Samples, message: str):
    state = Position(21).state(samples_of())

    with pytest.raises(ConfigError, match=message):
        position_of(state, samples)


@pytest.mark.parametrize(
    "state", [{}, None, "{}", [1], {"version": 2, "samples": 1, "order": "{}"}]
)
def test_a_state_of_another_version_is_refused(state: dict[str, Any]):
    with pytest.raises(ConfigError, match="expected a state of version 1, found "):
        position_of(state, samples_of())


EDITS = [None, True, -1, 1.5, math.nan, 10**30, "", "{", "x" * 500, [], {}, [[]], [1], {"a": 1}]


def edited(value: Any) -> Iterator[Any]:
    """Yield JSON with one value in it replaced or left out, each in turn."""
    yield from EDITS
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {name: of for name, of in value.items() if name != key}
            yield from ({**value, key: of} for of in edited(inner))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield value[:number] + value[number + 1 :]
            yield from ([*value[:number], of, *value[number + 1 :]] for of in edited(inner))


def edited_states(state: dict[str, Any]) -> Iterator[Any]:
    """Yield a state with one value of it replaced, also one of those in its order."""
    yield from edited(state)
    for order in edited(json.loads(state["order"])):
        yield {**state, "order": json.dumps(order)}
    for order in ("{", "[" * 100_000, "[" * 300 + "]" * 300, b"{}", "NaN"):
        yield {**state, "order": order}


@pytest.mark.parametrize(
    "samples",
    [
        samples_of(),
        mix(
            {name: in_order(CountingRows(100, name=name)) for name in ("web", "code")},
            weights={"web": 3, "code": 1},
            seed=1,
            stages=[(50_000, {"web": 1, "code": 1})],
        ),
    ],
)
def test_an_edited_state_goes_on_where_it_was_saved_or_is_refused_in_words(samples: Samples):
    position = Position(21, (range(30, 40), range(50, 60)))
    told = set()
    for state in edited_states(position.state(samples)):
        try:
            found = position_of(state, samples)
        except ConfigError as error:
            told.add(str(error))
        else:
            assert found == position or state["skipped"] != [[30, 40], [50, 60]]
    assert max(map(len, told)) < 800


OUT_OF_ORDER = [[[50, 60], [30, 40]], [[30, 40], [40, 50]], [[30, 40, 2]], [[9, 9]], [[30.0, 40]]]


@pytest.mark.parametrize("skipped", [*OUT_OF_ORDER, 7, [[-1, 3]]])
def test_skipped_samples_out_of_order_are_refused(skipped: Any):
    state = {**Position(21).state(samples_of()), "skipped": skipped}

    with pytest.raises(ConfigError, match="skipped"):
        position_of(state, samples_of())

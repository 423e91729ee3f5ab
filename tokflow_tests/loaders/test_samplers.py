"""What DataLoaders are given, without torch; tokflow_tests/interop/loaders has it with torch."""

import pickle
from itertools import islice
from typing import Any

import pytest

from tokflow.errors import ConfigError
from tokflow.loaders.loader import BatchSampler, Loader
from tokflow.loaders.rows import in_order
from tokflow_tests.loaders.row_sources import CountingRows


def loader_of(**options: Any) -> Loader:
    return Loader(in_order(CountingRows(100)), **{"batch_size": 9, "seed": 1, **options})


def test_the_numbers_of_a_sampler_are_those_of_the_ranks_samples():
    loader = loader_of(rank=1, world_size=3)
    loader.skip(range(4, 10))

    assert [*islice(loader.sampler(), 2)] == [[3, 10, 11], [18, 19, 20]]


def test_a_sampler_begins_where_its_loader_is():
    loader = loader_of(num_epochs=1)
    next(loader)
    sampler = pickle.loads(pickle.dumps(loader.sampler()))
    dataset = pickle.loads(pickle.dumps(loader.samples_dataset))

    for numbers, batch in zip(sampler, loader, strict=True):
        assert dataset.__getitems__(numbers).batch["index"].tolist() == batch["index"].tolist()
    assert [*next(iter(sampler))] == [*range(9, 18)]
    assert dataset[7]["index"] == loader_of(batch_size=8).__next__()["index"][7]


def test_an_iteration_begins_where_the_loader_is_by_then():
    loader = loader_of()
    sampler = loader.sampler()
    other = loader_of(batch_size=30)
    next(other)

    loader.load_state_dict(other.state_dict())
    assert next(iter(sampler)) == [*range(30, 39)]
    loader.load_state_dict(sampler.state_dict(num_batches=1))
    loader.skip(range(40, 50))

    assert next(iter(sampler)) == [39, *range(50, 58)]
    assert sampler.state_dict() == loader.state_dict()


def test_the_state_behind_some_batches_is_that_of_the_loader_however_many_they_are():
    loader = loader_of()
    loader.skip(range(4, 10))
    sampler = loader.sampler()
    iter(sampler)

    for num_batches in range(3):
        assert sampler.state_dict(num_batches) == loader.state_dict()
        next(loader)
    assert sampler.state_dict(10**15)["samples"] == 9 * 10**15 + 6


@pytest.mark.parametrize("num_batches", [-1, "3", 1.0])
def test_a_number_of_batches_that_is_none_is_refused(num_batches: Any):
    with pytest.raises(ConfigError, match="num_batches: expected"):
        loader_of().sampler().state_dict(num_batches=num_batches)


def test_an_iteration_goes_on_from_a_state_and_the_next_from_that_of_the_sampler():
    sampler = loader_of().sampler()
    some = iter(sampler)
    next(some)

    later = iter(loader_of(batch_size=4).sampler())
    later.load_state_dict(some.state_dict())
    sampler.load_state_dict(later.state_dict())

    assert next(later) == [9, 10, 11, 12]
    assert next(iter(sampler)) == next(iter(sampler)) == [*range(9, 18)]


@pytest.mark.parametrize("kind", [BatchSampler, iter])
def test_a_state_of_other_samples_is_refused_here_too(kind: Any):
    loader = loader_of(seed=2)
    sampler = loader.sampler() if kind is BatchSampler else iter(loader.sampler())

    with pytest.raises(ConfigError, match="expected a state of seed 2, found 1"):
        sampler.load_state_dict(loader_of().state_dict())

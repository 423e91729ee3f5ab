"""Grain reads rows and samples in the order of tokflow, its own shuffle off, and resumes there."""

import grain
import numpy as np
import pytest
from absl import flags
from grain.multiprocessing import MultiprocessingOptions
from grain.sources import RandomAccessDataSource

from tokflow.loaders.loader import Loader
from tokflow.loaders.rows import in_order
from tokflow_tests.loaders.row_sources import CountingRows

pytestmark = pytest.mark.interop

ROWS = in_order(CountingRows(101)).shuffled(seed=1)


def test_rows_are_a_random_access_data_source():
    dataset = grain.MapDataset.source(ROWS)

    assert isinstance(ROWS, RandomAccessDataSource)
    assert len(dataset) == 101
    assert [dataset[place]["index"] for place in range(101)] == ROWS[:]["index"].tolist()


def test_a_batch_of_grain_has_every_field_of_the_rows():
    batch = next(iter(grain.MapDataset.source(ROWS).batch(4).to_iter_dataset()))

    assert batch.keys() == ROWS[:4].keys()
    for name, values in ROWS[:4].items():
        assert batch[name].dtype == values.dtype
        assert batch[name].tolist() == values.tolist()


def test_grain_resumes_in_the_order_of_the_rows():
    batches = grain.MapDataset.source(ROWS).batch(4).to_iter_dataset()
    first, second = iter(batches), iter(batches)
    next(first)
    next(first)

    second.set_state(first.get_state())

    assert next(second)["index"].tolist() == ROWS[8:12]["index"].tolist()


def test_workers_of_grain_give_the_same_batches():
    flags.FLAGS.mark_as_parsed()  # as a training's `app.run` does; Grain reads some beside JAX
    batches = grain.MapDataset.source(ROWS).batch(25).to_iter_dataset()

    found = [*batches.mp_prefetch(MultiprocessingOptions(num_workers=2))]

    assert [batch["index"].tolist() for batch in found] == [
        ROWS[start : start + 25]["index"].tolist() for start in range(0, 101, 25)
    ]


def test_samples_without_end_are_a_source_too_and_grain_deals_them_out():
    loader = Loader(in_order(CountingRows(3)), batch_size=2, seed=1)
    dataset = grain.MapDataset.source(loader.samples_dataset)

    batches = [iter(dataset[rank::2].batch(1).to_iter_dataset()) for rank in range(2)]
    found = [int(next(batch)["index"][0]) for _ in range(6) for batch in batches]

    assert found == loader.samples.gather(np.arange(12))["index"].tolist()

"""A loader, and what DataLoaders are given of it; `interop/loaders` has that with torch."""

import gc
import pickle
import threading
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.errors import ConfigError
from tokflow.loaders.loader import BatchSampler, Loader
from tokflow.loaders.rows import Rows, in_order, open_rows
from tokflow.loaders.samples import Batch, Numbers
from tokflow_tests.loaders.row_sources import CountingRows
from tokflow_tests.pools.forked import forked
from tokflow_tests.tiny import EOS, build, declare

NUM_ROWS = 101


def rows_of(num_rows: int = NUM_ROWS) -> Rows:
    return in_order(CountingRows(num_rows))


def test_skipping_forgets_batches_made_ahead():
    with Loader(rows_of(), batch_size=10, prefetch=3) as loader:
        next(loader)
        loader.skip(range(15, 35))

        assert next(loader)["index"].tolist() == [10, 11, 12, 13, 14, 35, 36, 37, 38, 39]


def test_a_last_batch_that_is_not_full_may_be_left_out_on_every_rank_alike():
    ranks = [
        Loader(rows_of(9), batch_size=4, rank=rank, world_size=3, num_epochs=1, drop_last=True)
        for rank in range(3)
    ]

    assert [[len(batch["index"]) for batch in loader] for loader in ranks] == [
        [1] * 2,
        [1] * 2,
        [2] * 2,
    ]
    assert [len([*loader.sampler()]) for loader in ranks] == [0, 0, 0]
    assert [loader.state_dict()["samples"] for loader in ranks] == [8, 8, 8]
    full = Loader(rows_of(8), batch_size=4, num_epochs=1, drop_last=True)
    assert [len(numbers) for numbers in full.sampler()] == [4, 4]


@dataclass(frozen=True)
class FailingRows(CountingRows):
    """Rows of which one gather fails, as on a disk that was gone for a moment."""

    gathers: list[int] = field(default_factory=list)

    def gather(self, numbers: Numbers) -> Batch:
        self.gathers.append(int(numbers[0]))
        if self.gathers.count(20) == 1 and numbers[0] == 20:
            raise OSError("the disk is gone")
        return super().gather(numbers)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_batch_that_could_not_be_read_is_tried_again(prefetch: int):
    with Loader(in_order(FailingRows(NUM_ROWS)), batch_size=10, prefetch=prefetch) as loader:
        found = [next(loader)["index"][0] for _ in range(2)]
        with pytest.raises(OSError, match="the disk is gone"):
            next(loader)

        assert loader.state_dict()["samples"] == 20
        assert [*found, *(next(loader)["index"][0] for _ in range(2))] == [0, 10, 20, 30]


def begun_loader() -> tuple[Loader, set[threading.Thread]]:
    """Return a loader that has handed out a batch, and its threads."""
    before = set(threading.enumerate())
    loader = Loader(rows_of(), batch_size=10)
    next(loader)
    threads = set(threading.enumerate()) - before
    assert threads
    return loader, threads


def test_a_closed_loader_has_no_threads_and_goes_on_behind_the_last_batch():
    loader, threads = begun_loader()

    loader.close()

    assert not any(thread.is_alive() for thread in threads)
    assert next(loader)["index"].tolist() == [*range(10, 20)]
    loader.close()


def test_the_threads_of_a_loader_that_nobody_has_end():
    loader, threads = begun_loader()

    del loader
    gc.collect()

    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()


def test_a_forked_process_goes_on_where_the_loader_is():
    with Loader(rows_of(), batch_size=10) as loader:
        next(loader)

        found = forked(lambda: [int(next(loader)["index"][0]) for _ in range(5)])
        assert found == [10, 20, 30, 40, 50]
        assert next(loader)["index"][0] == 10


@pytest.mark.parametrize(
    ("options", "where", "found"),
    [
        ({"rank": 2, "world_size": 2}, "Loader", "rank 2"),
        ({"batch_size": 3, "world_size": 4}, "Loader", "3"),
        ({"batch_size": 0}, "Loader", "0"),
        ({"prefetch": -1}, "prefetch", "-1, of int"),
        ({"batch_size": 8.0}, "batch_size", "8.0, of float"),
        ({"batch_size": "8"}, "batch_size", "'8', of str"),
        ({"drop_last": "no"}, "drop_last", "'no', of str"),
        ({"prefetch": True}, "prefetch", "True, of bool"),
        ({"arrays": "jax"}, "Loader", "'jax'"),
        ({"rows": "store/exports/bin"}, "Loader", "'store/exports/bin', of str"),
        ({"rows": [1, 2]}, "Loader", "[1, 2], of list"),
        ({"rows": None}, "Loader", "None, of NoneType"),
        ({"rows": rows_of().epochs(1), "seed": 1}, "Loader", "seed=1"),
        ({"rows": rows_of().epochs(1), "blocks": 1}, "Loader", "blocks=1"),
        ({"rows": rows_of().epochs(1), "num_epochs": 1}, "Loader", "num_epochs=1"),
    ],
)
def test_what_makes_no_batches_is_refused(options: dict[str, Any], where: str, found: str):
    with pytest.raises(ConfigError) as raised:
        Loader(**{"rows": rows_of(), "batch_size": 8, **options})

    assert (raised.value.where, raised.value.found) == (where, found)


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"rank": 2, "world_size": 3}])
def test_the_length_of_a_loader_is_its_batches_from_the_beginning_to_the_end(options: Any):
    loader, skipping = (Loader(rows_of(), batch_size=24, num_epochs=2, **options) for _ in "ab")
    skipping.skip(range(150, 180))

    for each in (loader, skipping):
        length = len(each)
        assert length == len(each.sampler()) == len([*each.sampler()])
        assert length == len([*each]) == len(each)


def test_a_loader_without_end_has_no_length_and_is_true():
    loader = Loader(rows_of(), batch_size=24)

    assert loader
    with pytest.raises(TypeError, match=r"samples that end, found some without end; give `num_e"):
        len(loader)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_threads_that_share_a_loader_have_every_batch_once(prefetch: int):
    loader = Loader(in_order(CountingRows(3200)), batch_size=2, num_epochs=1, prefetch=prefetch)
    found: list[int] = []

    def take() -> None:
        found.extend(row for batch in loader for row in batch["index"].tolist())

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loader.close()

    assert sorted(found) == [*range(3200)]


def test_a_process_forked_while_another_thread_takes_a_batch_goes_on():
    loader = Loader(rows_of(), batch_size=10, prefetch=0)

    with loader._turn:
        assert forked(lambda: int(next(loader)["index"][0])) == 0


SEGMENTS = {
    "npy": [[*b"abc", EOS], [*b"de", EOS], [*b"f"], [EOS] * 6],
    "parquet": [[*b"abc", EOS], [*b"de", EOS], [*b"f", EOS], [EOS] * 5],
}
"""The segments of two rows of 7, padding too: of a stream the last token is a label alone."""


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("name", SEGMENTS)
def test_cumulative_lengths_lead_to_the_documents_of_a_batch(
    name: str, prefetch: int, tmp_path: Path
):
    dataset = declare(
        tmp_path,
        {"a.jsonl": ["abc", "de", "f"]},
        packing={"strategy": "greedy", "sequence_length": 7},
        exports=["npy", "parquet"],
    )
    length = 7 if name == "npy" else None
    rows = open_rows(build(dataset).export(name).folder, sequence_length=length)

    [batch] = Loader(rows, batch_size=2, num_epochs=1, cu_seqlens=True, prefetch=prefetch)

    flat = batch["input_ids"].reshape(-1)
    found = np.split(flat, batch["cu_seqlens"][1:-1])
    expected = SEGMENTS[name]
    assert [of.tolist() for of in found] == expected
    assert batch["cu_seqlens"].tolist()[-1] == flat.size
    assert batch["max_seqlen"] == max(map(len, expected))


@pytest.mark.parametrize("format_", ["parquet", "npy"])
def test_a_state_goes_on_where_an_export_is_divided_into_other_files(format_: str, tmp_path: Path):
    files = {f"{name}.jsonl": [name * 40] * 3 for name in "abcd"}
    export = {"format": format_, "name": "x", "shards": None}
    loaders = []
    for division in ({}, {"shards": "by_file", "shard_size": 400}):
        made = build(declare(tmp_path, files, exports=[export | division])).export("x")
        rows = open_rows(made.folder, sequence_length=4)
        loaders.append(Loader(rows, batch_size=2, seed=1, num_epochs=1))
    before, now = loaders
    batches = iter(before)
    next(batches)

    now.load_state_dict(before.state_dict())

    assert len(made.manifest.files) > 3
    for batch, again in zip(batches, now, strict=True):
        np.testing.assert_array_equal(batch["input_ids"], again["input_ids"])


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

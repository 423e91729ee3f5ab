"""torch's DataLoader and torchdata's StatefulDataLoader give the batches of `Loader`."""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import checkpoint
from torch.utils.data import ConcatDataset, DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tokflow.errors import ConfigError
from tokflow.loaders.loader import Loader
from tokflow.loaders.mixed_samples import mix
from tokflow.loaders.rows import Rows, in_order, open_rows
from tokflow.loaders.samples import collate
from tokflow_tests.loaders.row_sources import CountingRows
from tokflow_tests.tiny import build, declare

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # StatefulDataLoader calls it
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),  # fork, from 3.12 on
]

STARTS = ("fork", "spawn", "forkserver")


def rows_of(num_rows: int = 101) -> Rows:
    return in_order(CountingRows(num_rows))


def loader_of(**options: Any) -> Loader:
    return Loader(rows_of(), **{"batch_size": 12, "seed": 1, **options})


def indexes(batches: Iterable[dict[str, torch.Tensor]]) -> list[list[int]]:
    return [batch["index"].tolist() for batch in batches]


def workers_of(loader: Loader, kind: type = DataLoader, **options: Any) -> DataLoader:
    return kind(
        loader.samples_dataset, batch_sampler=loader.sampler(), collate_fn=collate, **options
    )


def test_torch_arrays_are_those_of_numpy():
    with loader_of() as arrays, loader_of(arrays="torch") as tensors:
        expected, found = next(arrays), next(tensors)

    assert {name: values.dtype for name, values in found.items()} == dict.fromkeys(
        ("input_ids", "labels", "index"), torch.int64
    )
    for name, values in found.items():
        assert values.is_contiguous()
        assert values.numpy().tolist() == expected[name].tolist()


def test_a_batch_is_collated_without_a_copy():
    gathered = rows_of().__getitems__([3, 1])

    tensors = collate(gathered)

    assert tensors["input_ids"].data_ptr() == gathered.batch["input_ids"].ctypes.data
    assert collate(rows_of()[[3, 1]])["index"].tolist() == [3, 1]


def test_rows_are_a_map_style_dataset_also_within_another():
    rows = rows_of(5)
    joined = ConcatDataset([rows, rows])

    alone = next(iter(DataLoader(rows, batch_size=5, collate_fn=collate)))
    [*_, last] = DataLoader(joined, batch_size=5, collate_fn=collate)
    default = next(iter(DataLoader(rows, batch_size=5)))

    for name, values in alone.items():
        assert values.tolist() == last[name].tolist() == default[name].tolist()


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export, whose rows processes that are not forked open anew."""
    texts = [f"document {number} of a hundred" for number in range(100)]
    dataset = declare(tmp_path_factory.mktemp("bin"), {"a.jsonl": texts}, exports=["bin"])
    build(dataset)
    return dataset.folder / "exports" / "bin"


def test_tensors_keep_their_values_while_memory_is_used_again(
    export: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = open_rows(export, sequence_length=16)
    monkeypatch.setattr("tokflow.loaders.samples.SMALL_BYTES", 1)

    with Loader(rows, batch_size=8, seed=1, arrays="torch", prefetch=3) as loader:
        found = [batch["labels"][1:] for batch in islice(loader, 40)]

    expected = loader.samples.gather(np.arange(40 * 8))["labels"].reshape(40, 8, -1)
    assert torch.stack(found).tolist() == expected[:, 1:].tolist()


@pytest.mark.parametrize("start", [None, *STARTS])
def test_workers_give_the_batches_of_the_loader(start: str | None, export: Path):
    options = {"num_workers": 2, "multiprocessing_context": start} if start else {}
    rows = open_rows(export, sequence_length=16)
    loader = Loader(rows, batch_size=32, rank=1, world_size=2, seed=1, num_epochs=1)
    loader.skip(range(50, 90))

    found = [*workers_of(loader, **options)]

    expected = [*loader]
    assert len(found) == len(expected) == (len(rows) - 40 + 31) // 32
    for batch, arrays in zip(found, expected, strict=True):
        assert {name: values.tolist() for name, values in batch.items()} == {
            name: values.tolist() for name, values in arrays.items()
        }


def test_the_state_of_a_dataloader_is_that_of_the_batches_it_handed_out():
    loader, sampler = loader_of(), loader_of().sampler()
    batches = DataLoader(
        loader.samples_dataset, batch_sampler=sampler, collate_fn=collate, num_workers=2
    )

    before = indexes(islice(batches, 5))
    loader.load_state_dict(sampler.state_dict(num_batches=5))

    assert before + indexes(islice(loader, 2)) == indexes(islice(loader_of(), 7))


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_the_length_of_a_dataloader_is_its_batches_where_there_is_an_end(kind: type):
    batches = workers_of(loader_of(num_epochs=1), kind)

    assert len(batches) == len([*batches]) == 9
    with pytest.raises(TypeError, match="give `num_epochs=`"):
        len(workers_of(loader_of(), kind))


@pytest.mark.parametrize(
    "one",
    [
        loader_of(),
        loader_of(num_epochs=1),
        rows_of().epochs(1),
        mix({"a": rows_of(), "b": rows_of()}, weights={"a": 1, "b": 1}),
    ],
)
def test_who_gives_samples_to_a_dataloader_is_told_what_it_takes(one: Any):
    with pytest.raises(TypeError, match=r"`loader.samples_dataset` and `batch_sampler=loader.sa"):
        next(iter(DataLoader(one, batch_size=2, collate_fn=collate)))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_keeps_the_state_and_what_is_skipped(tmp_path: Path):
    saved, resumed = loader_of(), loader_of(batch_size=20)
    saved.skip(range(20, 31))
    next(saved)

    checkpoint.save({"loader": saved}, checkpoint_id=tmp_path, no_dist=True)
    checkpoint.load({"loader": resumed}, checkpoint_id=tmp_path, no_dist=True)

    assert resumed.state_dict() == saved.state_dict()
    first, second = indexes(islice(saved, 2))
    assert next(resumed)["index"].tolist() == [*first, *second[:8]]


STAGES = ((0, {"a": 7, "b": 3}), (1024, {"a": 5, "b": 5}))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(
    ("num_samples", "num_saved", "num_loaded", "error"),
    [(512, 1, 2, None), (2048, 2, 1, r"stages\[1\]"), (2048, 1, 2, r"stages\[1\]")],
)
def test_a_distributed_checkpoint_keeps_all_that_decides_the_samples(
    num_samples: int, num_saved: int, num_loaded: int, error: str | None, tmp_path: Path
):
    sources = {name: in_order(CountingRows(5_000, name=name)) for name in "ab"}
    saved, resumed = (
        Loader(mix(sources, stages=STAGES[:num_stages], seed=1), batch_size=512)
        for num_stages in (num_saved, num_loaded)
    )
    for _ in range(num_samples // 512):
        next(saved)
    checkpoint.save({"loader": saved}, checkpoint_id=tmp_path, no_dist=True)

    with pytest.raises(Exception, match=error) if error else nullcontext():
        checkpoint.load({"loader": resumed}, checkpoint_id=tmp_path, no_dist=True)

    assert resumed.state_dict()["samples"] == (0 if error else num_samples)


@pytest.fixture
def expected() -> Iterator[list[list[int]]]:
    with loader_of(num_epochs=1) as loader:
        yield indexes(loader)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"snapshot_every_n_steps": 3}])
def test_a_stateful_dataloader_resumes_where_it_was(
    options: dict[str, int], expected: list[list[int]]
):
    first = workers_of(loader_of(num_epochs=1), StatefulDataLoader, **options)
    before = indexes(islice(first, 4))
    state = first.state_dict()

    second = workers_of(loader_of(num_epochs=1), StatefulDataLoader, **options)
    second.load_state_dict(state)

    assert before + indexes(second) == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_dataloader_resumes_with_other_ranks_and_batches(
    num_workers: int, expected: list[list[int]]
):
    first = workers_of(loader_of(num_epochs=1), StatefulDataLoader, num_workers=num_workers)
    found = [row for batch in islice(first, 3) for row in batch["index"].tolist()]
    state = first.state_dict()
    ranks = [
        workers_of(
            loader_of(num_epochs=1, rank=rank, world_size=3, batch_size=10),
            StatefulDataLoader,
            num_workers=num_workers,
        )
        for rank in range(3)
    ]
    for loader in ranks:
        loader.load_state_dict(state)

    for batches in zip(*ranks, strict=True):
        found += [row for batch in batches for row in batch["index"].tolist()]

    assert found == [row for batch in expected for row in batch]


def test_a_stateful_dataloader_refuses_the_state_of_other_samples():
    first = workers_of(loader_of(), StatefulDataLoader)
    next(iter(first))
    other = workers_of(loader_of(seed=2), StatefulDataLoader)
    other.load_state_dict(first.state_dict())

    with pytest.raises(ConfigError, match="expected a state of seed 2, found 1"):
        iter(other)

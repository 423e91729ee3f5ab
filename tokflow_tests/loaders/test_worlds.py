"""Samples of every kind are the same in the same order on ranks and in batches that change."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tokflow.loaders.loader import Loader
from tokflow.loaders.mixed_samples import mix
from tokflow.loaders.rows import Rows, open_rows
from tokflow.loaders.samples import Batch, Samples
from tokflow_tests.tiny import build, declare

TEXTS = [
    f"document {number}, of {number % 7} words more" + " more" * (number % 7)
    for number in range(60)
]

SAMPLES: dict[str, Callable[[Rows, Rows], Samples]] = {
    "in order": lambda stream, packed: stream.epochs(num_epochs=1),
    "shuffled": lambda stream, packed: packed.epochs(1, num_epochs=2),
    "in blocks": lambda stream, packed: stream.epochs(1, blocks=8, window=4, num_epochs=2),
    "mixture": lambda stream, packed: mix(
        {"stream": stream, "packed": packed}, weights={"stream": 1, "packed": 3}, seed=1
    ),
    "random windows": lambda stream, packed: stream.random_windows(1),
}

CHANGES = [(1, 7, 3), (8, 40, 2), (3, 16, 1), (2, 5, 4)]
"""World size, batch size and the number of batches until they change."""


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {"a.jsonl": TEXTS[:40], "b.jsonl": TEXTS[40:]}
    exports = ["bin", {"format": "parquet", "sequences_per_group": 8}]
    packing = {"sequence_length": 16}
    dataset = declare(tmp_path_factory.mktemp("worlds"), files, exports=exports, packing=packing)
    build(dataset)
    return dataset.folder / "exports"


def joined(batches: list[Batch]) -> Batch:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@pytest.mark.parametrize("kind", SAMPLES)
def test_ranks_and_batches_that_change_lose_and_repeat_nothing(kind: str, exports: Path):
    stream = open_rows(exports / "bin", sequence_length=16)
    packed = open_rows(exports / "parquet", fields=stream.source.fields)
    samples = SAMPLES[kind](stream, packed)
    found, state = [], Loader(samples, batch_size=1).state_dict()
    for world_size, batch_size, num_batches in CHANGES:
        ranks = [
            Loader(samples, batch_size=batch_size, rank=rank, world_size=world_size, prefetch=3)
            for rank in range(world_size)
        ]
        for loader in ranks:
            loader.load_state_dict(state)
        for batches in islice(zip(*ranks, strict=True), num_batches):
            found += batches
        [state] = {str(loader.state_dict()): loader.state_dict() for loader in ranks}.values()
        for loader in ranks:
            loader.close()

    expected = samples.gather(np.arange(state["samples"]))
    assert state["samples"] == sum(size * num for _, size, num in CHANGES)
    for name, values in joined(found).items():
        assert values.tolist() == expected[name].tolist()

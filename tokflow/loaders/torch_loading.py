"""Batches as torch takes them: tensors, and a Dataset and a sampler for its DataLoader."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokflow.loaders.position import Position, position_of, share_of
from tokflow.loaders.samples import Batch, Gathered, Samples, picked

if TYPE_CHECKING:
    import torch


def tensors_of(batch: Batch) -> dict[str, "torch.Tensor"]:
    """Return the fields as tensors that share their memory."""
    import torch

    return {name: torch.from_numpy(values) for name, values in batch.items()}


def collate(rows: Sequence[Batch]) -> dict[str, "torch.Tensor"]:
    """Return the batch that `__getitems__` gathered as tensors: the `collate_fn` of a DataLoader.

    No token is copied, but where something between gave rows one by one.
    """
    if isinstance(rows, Gathered):
        return tensors_of(rows.batch)
    return tensors_of({name: np.stack([row[name] for row in rows]) for name in rows[0]})


@dataclass(frozen=True, slots=True)
class SamplesDataset:
    """Samples as a map-style Dataset of torch: the one of a number, or a batch of some."""

    samples: Samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Batch:
        batch: Batch = self.__getitems__([number])[0]
        return batch

    def __getitems__(self, numbers: Sequence[int]) -> Gathered:
        """Return the samples of these numbers, gathered in one pass."""
        return Gathered(self.samples.gather(picked(numbers, len(self))))


class BatchSampler:
    """The numbers of one rank's samples, batch by batch: the `batch_sampler` of a DataLoader.

    Every iteration begins where the sampler was made, or where the state is of that it loaded. Its
    states are those of `Loader`. torchdata's StatefulDataLoader keeps and loads them by itself.
    """

    def __init__(
        self,
        samples: Samples,
        position: Position,
        *,
        batch_size: int,
        rank: int,
        world_size: int,
    ) -> None:
        self.samples, self._position = samples, position
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size

    def __iter__(self) -> "BatchNumbers":
        return BatchNumbers(self, self._position)

    def state_dict(self, num_batches: int = 0) -> dict[str, Any]:
        """Return the state behind so many batches of an iteration.

        A DataLoader asks for batches ahead of those it hands out: count these, and give the number.
        """
        num_samples = num_batches * self.batch_size
        behind = self._position.after(num_samples, length=len(self.samples))
        return behind.state(self.samples)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let iterations begin where the state was saved. Raises: ConfigError, as of `Loader`."""
        self._position = position_of(state, self.samples)


class BatchNumbers(Iterator[list[int]]):
    """An iteration of a sampler, with the state behind what it has yielded."""

    def __init__(self, sampler: BatchSampler, position: Position) -> None:
        self._sampler, self._position = sampler, position

    def __next__(self) -> list[int]:
        sampler = self._sampler
        numbers, behind = self._position.take(sampler.batch_size, length=len(sampler.samples))
        if not len(numbers):
            raise StopIteration
        self._position = behind
        own = share_of(numbers, rank=sampler.rank, world_size=sampler.world_size)
        return [*map(int, own)]

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind the last batch."""
        return self._position.state(self._sampler.samples)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the state was saved. Raises: ConfigError, as of `Loader`."""
        self._position = position_of(state, self._sampler.samples)

"""Batches as torch takes them: tensors, and a Dataset and a sampler for its DataLoader."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokflow.errors import ConfigError
from tokflow.loaders.arguments import integer
from tokflow.loaders.files_ahead import FilesAhead
from tokflow.loaders.position import Position, position_of
from tokflow.loaders.samples import Batch, Gathered, Samples, picked

if TYPE_CHECKING:
    import torch

    from tokflow.loaders.loader import Loader


def tensors_of(batch: Batch) -> dict[str, "torch.Tensor"]:
    """Return the fields as tensors that share their memory."""
    import torch

    return {name: torch.from_numpy(values) for name, values in batch.items()}


def collate(rows: Sequence[Batch] | Batch) -> dict[str, "torch.Tensor"]:
    """Return the batch that `__getitems__` gathered as tensors: the `collate_fn` of a DataLoader.

    Or a batch of arrays, such as `rows[:8]`. No token is copied, but where something between gave
    rows one by one.
    """
    if isinstance(rows, Gathered):
        return tensors_of(rows.batch)
    if isinstance(rows, Mapping):
        return tensors_of(rows)
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

    Every iteration begins where the loader is then, and does not move it. Its states are those of
    `Loader`. torchdata's StatefulDataLoader keeps and loads them by itself.
    """

    def __init__(self, loader: "Loader") -> None:
        self.loader = loader
        self._begun: Position | None = None

    def __len__(self) -> int:
        """Return how many batches there are from the first sample to the end, as of `Loader`."""
        return len(self.loader)

    def __iter__(self) -> "BatchNumbers":
        self._begun = self.loader.position
        return BatchNumbers(self.loader)

    def state_dict(self, num_batches: int = 0) -> dict[str, Any]:
        """Return the state behind so many batches of the last iteration.

        A DataLoader asks for batches ahead of those it hands out: count these, and give the number.
        """
        if integer("num_batches", num_batches) < 0:
            raise ConfigError(
                where="num_batches",
                expected="at least 0",
                found=f"{num_batches}",
                remedy="count the batches that the DataLoader handed out",
            )
        samples, begun = self.loader.samples, self._begun or self.loader.position
        behind = begun.after(num_batches * self.loader.batch_size, length=len(samples))
        return behind.state(samples)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move the loader to where the state was saved. Raises: ConfigError, as of `Loader`."""
        self.loader.load_state_dict(state)
        self._begun = None


class BatchNumbers(Iterator[list[int]]):
    """An iteration of a sampler, with the state behind what it has yielded."""

    def __init__(self, loader: "Loader") -> None:
        self._loader, self._position = loader, loader.position
        self._files = FilesAhead(loader.samples)  # which worker processes find on this disk

    def __next__(self) -> list[int]:
        self._files.move_to(self._position.next_sample)
        numbers, behind = self._loader.batch_at(self._position)
        if behind == self._position:
            raise StopIteration
        self._position = behind
        return [*map(int, numbers)]

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind the last batch."""
        return self._position.state(self._loader.samples)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the state was saved. Raises: ConfigError, as of `Loader`."""
        self._position = position_of(state, self._loader.samples)

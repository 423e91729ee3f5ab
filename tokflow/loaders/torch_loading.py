"""Batches as torch takes them: tensors, and a Dataset for its DataLoader."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokflow.loaders.samples import Batch, Gathered, Samples, picked

if TYPE_CHECKING:
    import torch


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

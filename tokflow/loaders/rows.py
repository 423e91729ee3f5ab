"""Rows: the rows of an export in an order, opened by `open_rows`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokflow.loaders.epochs import Epochs
from tokflow.loaders.orders import InOrder, Shuffled
from tokflow.loaders.samples import Batch, Gathered, Numbers, Order, RowSource, picked, sources_of


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a source in an order, each found alone.

    It is a map-style Dataset of torch and a RandomAccessDataSource of Grain.
    """

    source: RowSource
    order: Order

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides which row is at each place, as JSON."""
        return {"order": self.order.identity, "sources": sources_of(self.source)}

    def __len__(self) -> int:
        return len(self.order)

    def gather(self, numbers: Numbers) -> Batch:
        """Return the rows at these places of the order; `index` tells which they are."""
        return self.source.gather(self.order.at(numbers))

    def __getitem__(self, chosen: int | slice | Sequence[int] | Numbers) -> Batch:
        """Return one row, whose fields have one dimension less, or those of a slice or a list."""
        if isinstance(chosen, int | np.integer):
            batch: Batch = self.__getitems__([int(chosen)])[0]
            return batch
        return self.gather(picked(chosen, len(self)))

    def __getitems__(self, numbers: Sequence[int]) -> Gathered:
        """Return several rows, gathered in one pass: torch's DataLoader asks for a batch so."""
        return Gathered(self.gather(picked(numbers, len(self))))

    def shuffled(self, seed: int, epoch: int = 0) -> "Rows":
        """Return the same rows in an order that seed and epoch decide."""
        return replace(self, order=Shuffled(len(self.source), seed, epoch))

    def epochs(self, seed: int | None = None, *, num_epochs: int | None = None) -> Epochs:
        """Return the rows as the samples of a training, every row once in each epoch: shuffled anew
        for each by the seed; without one in this order. Without `num_epochs` they have no end.
        """
        return Epochs(source=self.source, order=self.order, seed=seed, num_epochs=num_epochs)


def in_order(source: RowSource) -> Rows:
    """Return the rows of a source in the order of their files."""
    return Rows(source, InOrder(len(source)))

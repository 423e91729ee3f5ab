"""Epochs: the rows of a source as the samples of a training, every row once in each epoch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokflow.errors import ConfigError
from tokflow.loaders.arguments import integer, optional
from tokflow.loaders.orders import WINDOW, InOrder, shuffled_order
from tokflow.loaders.samples import (
    ENDLESS,
    Batch,
    FilesOf,
    Numbers,
    Order,
    RowSource,
    check_samples,
    grouped,
    no_dataset,
    samples_shown,
    sources_of,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Epochs:
    """Epoch after epoch of n rows: sample s is the row at place s % n of epoch s // n.

    Of 3 rows, in order:

        sample  0 1 2  3 4 5  6 ...
        epoch   0 0 0  1 1 1  2
        row     0 1 2  0 1 2  0
    """

    source: RowSource
    order: Order
    """Of each epoch where there is no seed."""
    seed: int | None = None
    """Each epoch has an order of its own, which seed and epoch decide."""
    blocks: int | None = None
    """Rows of a block, where the orders are of `ShuffledBlocks`."""
    window: int = WINDOW
    num_epochs: int | None = None
    """None: without end."""

    __repr__ = samples_shown
    __getitem__ = no_dataset

    def __post_init__(self) -> None:
        for name in ("seed", "blocks", "num_epochs"):
            object.__setattr__(self, name, optional(integer, name, getattr(self, name)))
        object.__setattr__(self, "window", integer("window", self.window))
        if not len(self.source):
            raise ConfigError(
                where=self.source.name,
                expected="at least one row, to make epochs of",
                found="none",
                remedy="take another part, or a shorter sequence_length",
            )
        if not isinstance(self.order, InOrder):
            for name, value in (("seed", self.seed), ("blocks", self.blocks)):
                if value is not None:
                    raise ConfigError(
                        where=name,
                        expected="rows in the order of their files, to shuffle anew in each epoch",
                        found=f"rows that are {self.order.identity['kind']}, and {name}={value!r}",
                        remedy="give the seed once: here, with rows as open_rows returns them "
                        "(`rows.epochs(seed, blocks=, window=)` takes a window too), "
                        "or to `shuffled` alone, for the same order in each epoch",
                    )
        if self.num_epochs is not None and self.num_epochs < 1:
            raise ConfigError(
                where="num_epochs",
                expected="at least 1",
                found=f"{self.num_epochs:,}",
                remedy="leave it out for epochs without end",
            )
        if self.blocks is not None and self.seed is None:
            raise ConfigError(
                where="blocks",
                expected="a seed too, which decides their order",
                found="none",
                remedy="give a seed, or leave blocks out",
            )

    @property
    def identity(self) -> Mapping[str, Any]:
        """As `Samples` has it; the number of epochs decides no row, so that it may change."""
        return {
            "kind": "epochs",
            "seed": self.seed,
            "order": self._order(epoch=0).identity,
            "sources": sources_of(self.source),
        }

    def __len__(self) -> int:
        return ENDLESS if self.num_epochs is None else self.num_epochs * len(self.order)

    def at(self, numbers: Numbers) -> Numbers:
        """Return the number of the row that each sample is. Raises: IndexError."""
        check_samples(numbers, len(self))
        epochs, places = np.divmod(numbers, len(self.order))
        rows = np.empty_like(numbers)
        for epoch, here in grouped(epochs):
            rows[here] = self._order(epoch).at(places[here])
        return rows

    def gather(self, numbers: Numbers) -> Batch:
        """Return the samples of these numbers; `index` tells which rows they are."""
        return self.source.gather(self.at(numbers))

    def files_elsewhere(self) -> FilesOf | None:
        """As `Samples` has it."""
        files_of = self.source.files_elsewhere()
        return None if files_of is None else lambda numbers: files_of(self.at(numbers))

    def _order(self, epoch: int) -> Order:
        """Return the order of the rows in an epoch."""
        if self.seed is None:
            return self.order
        return shuffled_order(len(self.source), self.seed, epoch, self.blocks, self.window)

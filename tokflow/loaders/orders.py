"""Orders of rows: as they lie in their files, or shuffled by a seed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokflow.loaders.samples import Numbers
from tokflow.split.permutation import PERMUTATION_VERSION, Permutation


@dataclass(frozen=True, slots=True)
class InOrder:
    """The rows in the order of their files."""

    num_rows: int

    @property
    def identity(self) -> Mapping[str, Any]:
        """As `Order` has it."""
        return {"kind": "in order"}

    def __len__(self) -> int:
        return self.num_rows

    def at(self, places: Numbers) -> Numbers:
        """Return the places themselves."""
        return places


@dataclass(frozen=True, slots=True)
class Shuffled:
    """All rows once, in an order that seed and epoch decide; no table of it is kept."""

    num_rows: int
    seed: int
    epoch: int = 0
    _permutation: Permutation = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        permutation = Permutation(self.num_rows, self.seed, f"epoch {self.epoch}")
        object.__setattr__(self, "_permutation", permutation)

    @property
    def identity(self) -> Mapping[str, Any]:
        """As `Order` has it."""
        decided = {"seed": self.seed, "epoch": self.epoch}
        return {"kind": "shuffled", "version": PERMUTATION_VERSION, **decided}

    def __len__(self) -> int:
        return self.num_rows

    def at(self, places: Numbers) -> Numbers:
        """Return the number of the row at each place."""
        return self._permutation.at(places)

"""Rows that tests can read: row n of a source is its tokens n * T, n * T + 1 and so on."""

from dataclasses import dataclass

import numpy as np

from tokflow.loaders.loader import Loader
from tokflow.loaders.rows import Rows
from tokflow.loaders.samples import Batch, Numbers


@dataclass(frozen=True)
class CountingRows:
    """A source of rows whose tokens count up from `first`."""

    num_rows: int
    sequence_length: int = 4
    name: str = "counting"
    first: int = 0
    fields: tuple[str, ...] = ("input_ids", "labels", "index")
    tokenizer: str = ""

    @property
    def fingerprint(self) -> str:
        return f"{self.name}:{self.num_rows}:{self.sequence_length}:{self.first}"

    @property
    def identity(self) -> dict[str, str | int]:
        own = {"name": self.name, "fingerprint": self.fingerprint}
        output = f"{self.name}{self.first}"
        return {**own, "output": output, "sequence_length": self.sequence_length}

    @property
    def num_tokens(self) -> int:
        return self.num_rows * self.sequence_length

    def __len__(self) -> int:
        return self.num_rows

    def gather(self, numbers: Numbers) -> Batch:
        begins = self.first + numbers[:, None] * self.sequence_length
        input_ids = begins + np.arange(self.sequence_length)
        return {"input_ids": input_ids, "labels": input_ids + 1, "index": numbers}

    def remote_files(self) -> None:
        return None


@dataclass(frozen=True)
class CountingStream(CountingRows):
    """A stream of `num_rows` * T + 1 tokens that count up."""

    @property
    def num_windows(self) -> int:
        return max(0, self.num_rows * self.sequence_length + 1 - self.sequence_length)

    def windows(self, positions: Numbers) -> Batch:
        input_ids = self.first + positions[:, None] + np.arange(self.sequence_length)
        return {"input_ids": input_ids, "labels": input_ids + 1, "index": positions}


def batches_of_rank(rows: Rows, rank: int) -> list[int]:
    """Return the numbers of the rows of one of three ranks, in a module that workers import in no
    time."""
    with Loader(rows, batch_size=6, rank=rank, world_size=3, seed=1, num_epochs=1) as loader:
        return [int(number) for batch in loader for number in batch["index"]]

"""Random windows: rows cut from a stream of tokens wherever a seed says."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tokflow.errors import ConfigError
from tokflow.loaders.arguments import integer
from tokflow.loaders.samples import (
    ENDLESS,
    Batch,
    FilesOf,
    Numbers,
    StreamSource,
    no_dataset,
    samples_shown,
    sources_of,
)
from tokflow.split.permutation import hashes
from tokflow.store.store import Store

RANDOM_WINDOWS_VERSION = 1
"""Raised when the same seed would give other windows."""


@dataclass(frozen=True, slots=True)
class RandomWindows:
    """Samples without end: each begins at any token of the stream that is as likely as the next.

    Windows overlap, and after one epoch's worth of them a share of 1/e of the tokens was not seen.
    """

    source: StreamSource
    seed: int
    _keys: tuple[np.uint64, ...] = field(init=False, repr=False, compare=False)

    __repr__ = samples_shown
    __getitem__ = no_dataset

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", integer("seed", self.seed))
        if not self.source.num_windows:
            raise ConfigError(
                where=self.source.name,
                expected=f"more than {self.source.sequence_length:,} tokens, to cut windows from",
                found="no more",
                remedy="take another part, or a shorter sequence_length",
            )
        name = f"{RANDOM_WINDOWS_VERSION}:{self.source.num_windows}:{self.seed}".encode()
        digest = hashlib.shake_256(name).digest(16)
        object.__setattr__(self, "_keys", tuple(np.frombuffer(digest, dtype="<u8")))

    @property
    def identity(self) -> Mapping[str, Any]:
        """As `Samples` has it."""
        decided = {"version": RANDOM_WINDOWS_VERSION, "seed": self.seed}
        return {"kind": "random windows", **decided, "sources": sources_of(self.source)}

    def __len__(self) -> int:
        return ENDLESS

    def at(self, numbers: Numbers) -> Numbers:
        """Return the position that each sample begins at."""
        first, second = self._keys
        hashed = hashes(hashes(numbers.astype(np.uint64), first), second)
        # Of 2**40 tokens the likeliest position is so by one part in 2**24.
        return (hashed % np.uint64(self.source.num_windows)).astype(np.int64)

    def gather(self, numbers: Numbers) -> Batch:
        """Return the samples of these numbers; `index` is the position in the stream."""
        return self.source.windows(self.at(numbers))

    def files_elsewhere(self) -> FilesOf | None:
        """As `Samples` has it: those of the rows in which windows begin and end."""
        if (files_of := self.source.files_elsewhere()) is None:
            return None

        def files_of_windows(numbers: Numbers) -> Iterable[tuple[Store, Path]]:
            rows = self.at(numbers) // self.source.sequence_length
            return files_of(np.concatenate([rows, np.minimum(rows + 1, len(self.source) - 1)]))

        return files_of_windows

"""Outputs that a report reads: the counts of all, and the tokens of a bounded number of files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt

from tokflow.pipeline.describe import Description, describe_all
from tokflow.pipeline.output import Stage
from tokflow.pipeline.plan import Plan
from tokflow.pipeline.status import FileStatus, file_statuses
from tokflow.shown import counted
from tokflow.store.integrity import report_damage_on_error
from tokflow.store.store import StoredOutput
from tokflow.store.stored_outputs import newest_output
from tokflow.tokens.shard import TokenShard, open_token_shard

FILE_BYTES = 2**23
"""Bytes of a sample for which one file is read: 64 files of a store on this disk."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSample:
    """The token shards that are read, of all that there are."""

    shards: tuple[TokenShard, ...]
    num_all: int

    @property
    def files(self) -> str:
        """`4 files`, or `64 of 1,000 files`."""
        return files_of(len(self.shards), self.num_all)

    @property
    def num_tokens(self) -> int:
        """Tokens of the shards, read or not."""
        return sum(of.num_tokens for of in self.shards)

    def beginnings(self, most: int) -> Iterator[npt.NDArray[Any]]:
        """Yield the first tokens of each shard, so many together at most: an equal share of each,
        or all of it where it has fewer.

        Raises: CorruptOutputError where one is none of its vocabulary, since its file is damaged.
        """
        for shard, share in self.shares("num_tokens", most):
            vocab_size = shard.manifest.details["vocab_size"]
            with report_damage_on_error(shard):
                token_ids = shard.tokens(is_lazy=share < shard.num_tokens).read(0, share)
                if share and (largest := int(token_ids.max())) >= vocab_size:
                    raise ValueError(f"token id {largest:,} in a vocabulary of {vocab_size:,}")
            yield token_ids

    def shares(self, count: str, most: int) -> Iterator[tuple[TokenShard, int]]:
        """Yield each shard and how much of what its manifest counts is its share of so many: an
        equal one, or all of it where it has less."""
        left = most
        sizes = [(of.manifest.counts[count], str(of.manifest.partition), of) for of in self.shards]
        sizes.sort(key=lambda each: each[:2])
        for number, (size, _, shard) in enumerate(sizes):
            share = min(size, left // (len(sizes) - number))
            left -= share
            yield shard, share

    def read_of(self, most: int) -> str:
        """Return a clause for `beginnings` of so many: what was read."""
        if self.num_tokens <= most:
            return f"all {self.num_tokens:,} tokens of {self.files}"
        return f"{most:,} tokens, the first of each of {self.files}"


@dataclass(frozen=True)  # without slots, since it keeps what it read
class StoreFacts:
    """Outputs in the store of a dataset, for a plan of it."""

    plan: Plan

    @cached_property
    def statuses(self) -> Sequence[FileStatus]:
        """The status of each file."""
        return file_statuses(self.plan)

    def folders(self, stage: Stage) -> list[Path]:
        """Return the folders of the outputs of a stage that a build would leave as they are: the
        tokens also of a mixture's sources, what comes after them of the dataset itself, sequences
        by its own packing."""
        planned = self.plan.planned if stage == "tokens" else self.plan.own
        made = [of for of in planned if of.stage == stage and of.is_made and not of.packing]
        return [of.folder for of in made if of.folder]

    @cached_property
    def text(self) -> Description | None:
        """The numbers of all token shards together; None where there is none."""
        return self._described("tokens")

    @cached_property
    def split(self) -> Description | None:
        """The numbers of all splits together; None where there is none."""
        return self._described("split")

    def _described(self, stage: Stage) -> Description | None:
        store = self.plan.dataset.store
        return describe_all(store.read(of).manifest for of in self.folders(stage))

    @cached_property
    def exports(self) -> list[StoredOutput]:
        """The exports in the order of the config: those that a build would leave, and of the others
        the newest that there are."""
        store = self.plan.dataset.store
        planned = [of for of in self.plan.own if of.stage == "export"]
        made = {of.output.name: store.read(of.folder) for of in planned if of.folder and of.is_made}
        found = [made.get(of.name) or newest_output(store, of.output.place) for of in planned]
        return [of for of in found if of is not None]

    @cached_property
    def shards(self) -> ShardSample:
        """The token shards that are read."""
        folders = self.folders("tokens")
        opened = tuple(open_token_shard(of) for of in self.sampled(folders))
        return ShardSample(shards=opened, num_all=len(folders))

    def sampled(self, folders: Sequence[Path]) -> list[StoredOutput]:
        """Return some of the outputs in folders, spread evenly, whether they were fetched before or
        not: the same store gives the same report."""
        store = self.plan.dataset.store
        return [store.read(of) for of in spread(folders, store.sample_bytes // FILE_BYTES)]

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts."""
        return tuple(self.plan.dataset.split.parts)


def files_of(num: int, num_all: int) -> str:
    """Return `4 files`, or `64 of 1,000 files`."""
    return counted(num, "file") if num == num_all else f"{num:,} of {num_all:,} files"


def length_of(sequences: StoredOutput, part: str) -> int:
    """Return the sequence_length of a part, which need not be that of the others."""
    length: int | dict[str, int] = sequences.manifest.details["sequence_length"]
    return length[part] if isinstance(length, dict) else length


def spread(all_of: Sequence[T], most: int) -> list[T]:
    """Return at most so many of a sequence, at equal distances, its first among them."""
    if len(all_of) <= most:
        return list(all_of)
    return [all_of[number * len(all_of) // most] for number in range(most)]

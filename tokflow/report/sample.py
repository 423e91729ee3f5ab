"""Outputs that a report reads: all manifests, and the tokens of a bounded number of files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tokflow.build.output import Stage
from tokflow.build.plan import Plan
from tokflow.store.stored_outputs import StoredOutput, read_output
from tokflow.tokens.shard import TokenShard, open_token_shard

MAX_FILES = 64
"""Files whose tokens and tables are read, spread evenly over all."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSample:
    """The token shards that are read, of all that there are."""

    shards: tuple[TokenShard, ...]
    num_all: int


def made_outputs(plan: Plan, stage: Stage) -> list[StoredOutput]:
    """Return the outputs of a stage that are there and are those of now, in the plan's order."""
    folders = [of.folder for of in plan.planned if of.stage == stage and of.is_made]
    return [read_output(folder) for folder in folders if folder is not None]


def open_shards(plan: Plan) -> ShardSample:
    """Open the token shards of at most `MAX_FILES` files."""
    made = made_outputs(plan, "tokens")
    shards = tuple(open_token_shard(of) for of in spread(made, MAX_FILES))
    return ShardSample(shards=shards, num_all=len(made))


def spread(all_of: Sequence[T], most: int) -> list[T]:
    """Return at most so many of a sequence, at equal distances, its first among them."""
    if len(all_of) <= most:
        return list(all_of)
    return [all_of[number * len(all_of) // most] for number in range(most)]

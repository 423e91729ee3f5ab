"""The config of shuffles, and what their seed decides."""

from typing import Any, ClassVar

from tokflow.errors import ConfigError
from tokflow.permutation import PERMUTATION_VERSION
from tokflow.store.config import Config
from tokflow.store.manifest import Manifest


class ShuffleConfig(Config):
    """Orders drawn by a seed. Nothing is lost or repeated, and no document changes its part."""

    section: ClassVar[str] = "shuffle"

    seed: int = 0
    """Another seed gives another, independent order."""
    sequences: bool = False
    """Put the finished sequences of each part, of all files, into the order of the seed when an
    export of sequences is made."""

    def check(self) -> None:
        """Refuse a shuffle of nothing."""
        if self.model_fields_set and not self.sequences:
            raise ConfigError(
                where="",
                expected="something to shuffle",
                found="nothing",
                remedy="add `sequences: true`, or leave `shuffle` out",
            )

    @property
    def of_sequences(self) -> int | None:
        """The seed of the order of sequences; None where they stay in the order of files."""
        return self.seed if self.sequences else None


def shuffle_seed_of(manifest: Manifest) -> int | None:
    """Return the seed that an output was shuffled with; None where it was not."""
    seed: int | None = manifest.config.get("shuffle", {}).get("seed")
    return seed


def shuffle_fields(seed: int | None) -> dict[str, Any]:
    """Return the fields by which a seed decides an output: none without a shuffle."""
    return {} if seed is None else {"shuffle": {"seed": seed, "version": PERMUTATION_VERSION}}

"""Shares of a dataset's partitions, for machines that build them at the same time."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokflow.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Share:
    """One of several shares of a dataset's partitions, such as the third of 64."""

    number: int
    """From 1."""
    of_shares: int

    @classmethod
    def read(cls, text: str) -> "Share":
        """Return the share that a text such as `3/64` names.

        Raises: ConfigError.
        """
        number, _, of_shares = text.partition("/")
        if number.isdecimal() and of_shares.isdecimal() and 0 < int(number) <= int(of_shares):
            return cls(int(number), int(of_shares))
        raise ConfigError(
            where="--shard",
            expected="the number of a share, from 1, and how many there are, such as 3/64",
            found=repr(text),
            remedy="correct it; where jobs are counted from 0, add 1",
        )

    def of(self, keys: Sequence[str]) -> list[str]:
        """Return the share of the keys: every 64th, from the third."""
        return list(keys[self.number - 1 :: self.of_shares])

    def __str__(self) -> str:
        return f"{self.number}/{self.of_shares}"

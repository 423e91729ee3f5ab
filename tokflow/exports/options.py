"""Checks that the options of many formats share."""

from tokflow.errors import ConfigError
from tokflow.exports.part import Part

LARGEST_LEVEL = {"gz": 9, "zst": 22, "zstd": 22}
"""The compression levels of a codec go from 1 to this."""


def check_level(compression: str, level: int | None) -> None:
    """Refuse a compression level that the codec does not have; None stands for its default.

    Raises: ConfigError.
    """
    largest = LARGEST_LEVEL.get(compression)
    if level is None or (largest is not None and 1 <= level <= largest):
        return
    raise ConfigError(
        where="compression_level",
        expected=f"1 to {largest}" if largest else "none, for nothing is compressed",
        found=repr(level),
        remedy="change it or leave it out",
    )


def check_int32_ids(part: Part, *, where: str, why: str) -> None:
    """Refuse ids that a format of int32 cannot hold.

    Raises: ConfigError.
    """
    if part.vocab_size > 2**31:
        raise ConfigError(
            where=f"exports: {where}",
            expected=f"ids below 2,147,483,648, for {why}",
            found=f"a vocabulary of {part.vocab_size:,}",
            remedy="name another format",
        )

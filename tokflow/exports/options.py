"""Checks that the options of many formats share."""

from collections.abc import Sequence

from tokflow.errors import ConfigError, four_parts


def check_counts(options: object, names: Sequence[str], *, where: str) -> None:
    """Refuse an option that counts something and is below 1; None stands for a default.

    Raises: ConfigError.
    """
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(
                four_parts(
                    where=f"exports: {where}: {name}",
                    expected="1 or more",
                    found=repr(value),
                    remedy="raise it",
                )
            )

"""A part of a split that is a bare number: its share of the documents."""

from typing import Annotated, TypeAlias

from pydantic import Field

from tokflow.errors import ConfigError

Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]


def as_part(part: object) -> object:
    """Return the fields that a bare share stands for; anything else as it is."""
    if isinstance(part, float):
        return {"fraction": part}
    if isinstance(part, int | str):
        raise ConfigError(
            where="",
            expected="a share with a point, or a mapping",
            found=repr(part),
            remedy="write it as 0.9, as {documents: 1000} or as {characters: 1_000_000}",
        )
    return part

"""Configs: frozen models of what a user declares, in YAML or by keyword."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar

import pydantic

from tokflow.errors import ConfigError
from tokflow.store.config_errors import cause_of, explained, relocated, within

T = TypeVar("T")

Listed: TypeAlias = Annotated[
    tuple[T, ...],
    pydantic.BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
]
"""A tuple, which YAML has as a list; a set has no order."""

Count: TypeAlias = Annotated[int, pydantic.Field(ge=1)]
"""1 or more."""


def bytes_of(size: str) -> int:
    """Return the bytes that text stands for: `500MB`, `1.5 GiB`, `1_000_000`.

    Raises: ValueError.
    """
    plain = re.sub(r"(?<=\d)_(?=\d)", "", size)
    return int(pydantic.TypeAdapter(pydantic.ByteSize).validate_python(plain))


def _as_size(size: object) -> object:
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    try:
        if isinstance(size, str):
            return bytes_of(size)
    except ValueError:
        pass
    raise ConfigError(
        where="",
        expected="bytes, as a whole number or with a unit",
        found=repr(size),
        remedy="write it as 500MB, 2GiB or 1_000_000",
    )


Size: TypeAlias = Annotated[
    int,
    pydantic.Field(ge=1),
    pydantic.BeforeValidator(_as_size, json_schema_input_type=int | str),
]
"""Bytes, 1 or more: a number, or text with a unit such as 500MB (of 1,000) or 2GiB (of 1,024)."""


def expanded(path: str | Path) -> Path:
    """Return a path with the home folder for `~` and `~user`, as it is if there is no such user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (Path's own raises a RuntimeError)


class Config(pydantic.BaseModel):
    """Fields that a user sets. Unknown ones are refused, and no value changes its type.

    The docstring under a field is its description. A bound is `Annotated[int, Field(ge=1), why]`,
    where `why` is text that messages add to it. Whatever is wrong is a ConfigError.
    """

    model_config = pydantic.ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        defer_build=True,  # until it is used
    )

    section: ClassVar[str] = ""
    """Its key in a dataset's YAML, for the messages of one that is made by keyword."""

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except pydantic.ValidationError as error:
            raise within(self.section, cause_of(error)) from None

    # So pydantic marks its own: for a config within a config it need not be called.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def read(cls, values: object, *, where: str) -> Self:
        """Return the config that plain values declare, as YAML gives them.

        Raises: ConfigError; `where` is what it calls the place that the values came from.
        """
        try:
            return cls.model_validate(values)
        except pydantic.ValidationError as error:
            cause = cause_of(error)
            place = ": ".join(filter(None, (where, cause.where)))
            raise relocated(cause, place) from None

    def check(self) -> None:
        """Refuse fields that do not go together.

        Raises: ConfigError, of which `where` is the field's name.
        """

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _explain(cls, values: object, handler: pydantic.ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(values)
        except pydantic.ValidationError as error:
            raise explained(error, cls.model_fields, values) from None

    @pydantic.model_validator(mode="after")
    def _checked(self) -> Self:
        self.check()
        return self

"""Configs: frozen models of what a user declares, in YAML or by keyword."""

import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar

import pydantic

from tokflow.store.config_errors import cause_of, explained, relocated, within

T = TypeVar("T")

Listed: TypeAlias = Annotated[
    tuple[T, ...],
    pydantic.BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
]
"""A tuple, which YAML has as a list; a set has no order."""

Count: TypeAlias = Annotated[int, pydantic.Field(ge=1)]
"""1 or more."""


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

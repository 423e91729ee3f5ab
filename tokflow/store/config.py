"""Configs: frozen models of what a user declares, in YAML or by keyword."""

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar

import pydantic
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tokflow.store.config_errors import cause_of, explained, relocated, within

T = TypeVar("T")

Listed: TypeAlias = Annotated[
    tuple[T, ...],
    pydantic.BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
]
"""A tuple, which YAML has as a list; a set has no order."""

Count: TypeAlias = Annotated[int, pydantic.Field(ge=1)]
"""1 or more."""


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

    @classmethod
    @cache
    def descriptions(cls) -> dict[str, str]:
        """Return the docstring under each field.

        They are read when somebody asks, for pydantic's `use_attribute_docstrings` reads the source
        of each class on import: 0.03 s of every command and worker.
        """
        found: dict[str, str] = {}
        for config in reversed(cls.__mro__[: cls.__mro__.index(Config)]):
            [definition] = ast.parse(textwrap.dedent(inspect.getsource(config))).body
            for field, below in pairwise(getattr(definition, "body", ())):
                match field, below:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(text))),
                    ):
                        found[name] = inspect.cleandoc(text)
        return found

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name in properties.keys() & cls.descriptions().keys():
            properties[name].setdefault("description", cls.descriptions()[name])
        return schema

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

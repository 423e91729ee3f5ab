"""Configs: frozen models of what a user declares, in YAML or by keyword, and their errors."""

import ast
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar, cast, get_args

import pydantic
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from tokflow.errors import ConfigError, TokflowError, nearest
from tokflow.store.manifest import OWN_FOLDER

T = TypeVar("T")

_UNKNOWN_KEY = ("extra_forbidden", "invalid_key")

_WORDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "invalid-json-value": "text, a number, true, false, null, a list or a mapping",
}

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
    with suppress(ValueError):
        if isinstance(size, str):
            return bytes_of(size)
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
            raise said_of(where, cause_of(error)) from None

    @classmethod
    @cache
    def descriptions(cls) -> dict[str, str]:
        """Return the docstrings under the fields, by field, read from the source: schemas need
        them, and no run."""
        found: dict[str, str] = {}
        for of in cls.__mro__[cls.__mro__.index(Config) - 1 :: -1]:
            [body] = ast.parse(textwrap.dedent(inspect.getsource(of))).body
            for field, text in pairwise(cast(ast.ClassDef, body).body):
                match field, text:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(docstring))),
                    ):
                        found[name] = inspect.cleandoc(docstring)
        return found

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema with a description of each field."""
        schema = handler(core_schema)
        for name, field in handler.resolve_ref_schema(schema)["properties"].items():
            if name in cls.descriptions():
                field.setdefault("description", cls.descriptions()[name])
        return schema

    @classmethod
    def has_key(cls, key: object) -> bool:
        """Return whether a YAML may have a key in this section."""
        return key in cls.model_fields

    def is_as_usual(self, name: str) -> bool:
        """Return whether a field has its default."""
        default = type(self).model_fields[name].get_default(call_default_factory=True)
        return bool(getattr(self, name) == default)

    def check(self) -> None:
        """Refuse fields that do not go together.

        Raises: ConfigError, of which `where` is the field's name.
        """

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _explain(cls, values: object, handler: pydantic.ModelWrapValidatorHandler[Self]) -> Self:
        try:
            made = handler(values)
        except pydantic.ValidationError as error:
            raise explained(error, cls.model_fields, values) from None
        made.check()
        return made


def check_keys(
    keys: Iterable[object],
    known: Iterable[str],
    *,
    where: str,
    remedy_of: Callable[[object], str | None] = lambda key: None,
) -> None:
    """Refuse the first key that is none of the known ones.

    Raises: ConfigError with the remedy of the key, or that names the nearest.
    """
    names = list(known)
    for key in keys:
        if key not in names:
            raise ConfigError(
                where=where,
                expected=f"one of the keys {', '.join(names)}",
                found=repr(key),
                remedy=remedy_of(key) or nearest(key, names) or "remove it",
            )


def check_name(name: object, *, where: str, becomes: str, marks: str) -> None:
    """Make sure that a name a user chose is letters, digits and some `marks`, and short.

    Raises: ConfigError.
    """
    is_safe = isinstance(name, str) and name.isascii() and 0 < len(name) <= 100
    is_safe = is_safe and str(name).lower() != OWN_FOLDER
    if not is_safe or not str(name).translate(str.maketrans("", "", marks)).isalnum():
        raise ConfigError(
            where=where,
            expected=f"{', '.join(['letters', 'digits', *marks[:-1]])} and {marks[-1]} "
            f"(it becomes {becomes}), and not {OWN_FOLDER}",
            found=repr(name),
            remedy="rename it",
        )


def cause_of(error: pydantic.ValidationError) -> TokflowError:
    """Return the error that a config's own validators raised."""
    cause: TokflowError = error.errors()[0]["ctx"]["error"]
    return cause


def relocated(error: TokflowError, where: str) -> ConfigError:
    """Return the error with another `where`."""
    return ConfigError(**{**error.fields(), "where": where})


def said_of(outer: str, error: TokflowError) -> ConfigError:
    """Return the error of something in `outer`, which stands before its `where`."""
    return relocated(error, ": ".join(filter(None, (outer, error.where))))


def within(outer: str, error: TokflowError) -> ConfigError:
    """Return the error of a field in `outer`, of which its `where` is relative."""
    dot = "." if outer and error.where and not error.where.startswith("[") else ""
    return relocated(error, f"{outer}{dot}{error.where}")


@contextmanager
def relocating(
    outer: str, put: Callable[[str, TokflowError], ConfigError] = said_of
) -> Iterator[None]:
    """Let each ConfigError of the block say that it is of something in `outer`, by `said_of` or
    `within`."""
    try:
        yield
    except ConfigError as error:
        raise put(outer, error) from error.__cause__


def explained(
    error: pydantic.ValidationError, fields: Mapping[str, FieldInfo], values: object
) -> ConfigError:
    """Return the first problem, an unknown key before any other; `where` is a path in `values`.

    `fields` are those of the config that was to be made of `values`.
    """
    problems = error.errors(include_url=False)
    unknown = [each["loc"][-1] for each in problems if each["type"] in _UNKNOWN_KEY]

    def right_place(key: object) -> str | None:  # of one that is a section's
        sections = [
            f"under `{name}`" if kind is field.annotation else f"into an entry of `{name}`"
            for name, field in fields.items()
            for kind in (field.annotation, *get_args(field.annotation))
            if isinstance(kind, type) and issubclass(kind, Config) and kind.has_key(key)
        ]
        return f"put it {' or '.join(sections)}" if sections else None

    try:
        check_keys(unknown, fields, where="", remedy_of=right_place)
    except ConfigError as of_key:
        return of_key
    first, loc = problems[0], problems[0]["loc"]
    if isinstance(cause := first.get("ctx", {}).get("error"), TokflowError):
        return within(_path(loc, values), cause)
    if first["type"] == "missing":
        import yaml  # of an error alone

        examples = fields[str(loc[0])].examples or []
        shown = (yaml.safe_dump({loc[0]: each}, default_flow_style=True) for each in examples)
        remedy = ", ".join(["add it", *(f"as in `{each.strip()[1:-1]}`" for each in shown)])
        return ConfigError(where="", expected=f"`{loc[0]}:`", found="none", remedy=remedy)
    # Of a union, every member has a problem with the value: the one that came deepest was meant.
    alike = [problem for problem in problems if problem["loc"][:1] == loc[:1]]
    path = max((_path(problem["loc"], values) for problem in alike), key=len)
    meant = [problem for problem in alike if _path(problem["loc"], values) == path]
    field = fields[str(loc[0])] if loc else FieldInfo()
    remedies = [_remedy(problem, field) for problem in meant]
    needed = [name for name, of in fields.items() if of.is_required()]
    if not loc and len(needed) == 1 and values and isinstance(values, str | list):
        remedies = [f"write {{{needed[0]}: {values}}}"]
    return ConfigError(
        where=path,
        expected=" or ".join(dict.fromkeys(_expected(problem, field) for problem in meant)),
        found=repr(meant[0]["input"]),
        remedy=next(filter(None, remedies), "correct it"),
    )


def _expected(problem: ErrorDetails, field: FieldInfo) -> str:
    bounds = dict(problem.get("ctx", {}))
    if problem["type"] == "literal_error":
        return f"one of {', '.join(_choices(problem))}"
    if problem["type"] == "greater_than":
        return f"more than {bounds['gt']:g}"
    if not {"ge", "le"} & {*bounds}:
        return _WORDS.get(problem["type"], problem["msg"])
    for each in field.metadata:
        bounds |= {name: getattr(each, name) for name in ("ge", "le") if hasattr(each, name)}
    text = " to ".join(f"{bounds[name]:,}" for name in ("ge", "le") if name in bounds)
    if len(bounds) == 1:
        text += " or more" if "ge" in bounds else " or less"
    return ", ".join([text, *(each for each in field.metadata if isinstance(each, str))])


def _remedy(problem: ErrorDetails, field: FieldInfo) -> str | None:
    found, context = problem["input"], problem.get("ctx", {})
    match problem["type"]:
        case "greater_than_equal" | "less_than_equal":
            change = "raise it" if "ge" in context else "lower it"
            return f"{change}, or leave it out" if field.default is None else change
        case "greater_than":
            return "raise it"
        case "literal_error":
            return nearest(found, _choices(problem)) or "name one of them"
        case "int_type" | "float_type":
            with suppress(ValueError):  # YAML takes some numbers for text, such as 1.5e6
                if isinstance(found, str) and float(found).is_integer():
                    return f"write {int(float(found)):_}"
        case "tuple_type" if isinstance(found, str | int | float):
            return f"write [{found}]"
        case "string_type" if isinstance(found, int | float):
            return "write it in quotes"
        case "model_type" | "dict_type":
            return "write keys and their values below it"
    return None


def _choices(problem: ErrorDetails) -> list[str]:
    return re.findall(r"'([^']*)'", problem["ctx"]["expected"])


def _path(loc: Iterable[int | str], values: Any) -> str:
    """Return a path such as `limit.characters` or `text[1]`, without names of a union's members."""
    path = ""
    for key in loc:
        if isinstance(values, Mapping) and key in values:
            path, values = f"{path}.{key}", values[key]
        elif isinstance(values, list | tuple) and isinstance(key, int):
            path, values = f"{path}[{key}]", values[key]
    return path.removeprefix(".")

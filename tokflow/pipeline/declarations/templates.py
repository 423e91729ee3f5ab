"""Templates in the YAML of a dataset: text such as `{{ env.NAME }}`, resolved as `dg` resolves it.

A text that holds `{{` or `{%` is a template; any other is taken as it is. A chat template is Jinja
itself, and never resolved. The value is what the whole resolved text means in Python, a number for
`8192`, be it of one template or of `20{{ env.YEAR }}`; text that means nothing there is text.
"""

import ast
import datetime
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tokflow.errors import ConfigError
from tokflow.pools.bounded import OverBoundError, bounded

if TYPE_CHECKING:
    import jinja2

RENDER_SECONDS = 10.0
"""Seconds that a template may take."""

MOST_CHARACTERS = 1_000_000
"""Characters that a template may repeat a text to."""

MOST_DIGITS = 10_000
"""Largest exponent in a template."""

JINJA_FIELDS = ("documents.chat_template",)
"""Fields that hold Jinja."""

Scope = Mapping[str, Any]
"""What templates may name, by name."""


def resolve_templates(
    attributes: Mapping[str, Any], *, base: Path, where: str, scope: Scope | None = None
) -> dict[str, Any]:
    """Return the attributes of a dataset with every template resolved, none of its keys.

    Known are `env.NAME`, `env('NAME', 'default')`, `context.project_root`, which is `base`, and
    `datetime`, besides what is in `scope`. No template runs code of its own.

    Raises: ConfigError, with the field, where one cannot be resolved, as with a variable that is
    not set.
    """
    known = {
        "datetime": SimpleNamespace(datetime=datetime.datetime, timedelta=datetime.timedelta),
        **(scope or {}),
        "context": SimpleNamespace(project_root=str(base.resolve())),
        "env": _Environment(),
    }
    resolved: dict[str, Any] = _resolved(attributes, known, where, field="")
    return resolved


@contextmanager
def showing_templates(attributes: Mapping[str, Any], resolved: Mapping[str, Any]) -> Iterator[None]:
    """Show the text of a template, in an error that is raised within, in place of its value, which
    may be secret."""
    try:
        yield
    except ConfigError as error:
        found, remedy = error.found, error.remedy
        for text, value in _pairs(attributes, resolved):
            is_text = isinstance(value, str) and value != ""
            if is_text or found == repr(value):
                found = found.replace(repr(value), repr(text))
                remedy = remedy.replace(str(value), text) if found != error.found else remedy
        raise ConfigError(**{**error.fields(), "found": found, "remedy": remedy}) from None


def _pairs(attributes: Any, resolved: Any) -> Iterator[tuple[str, Any]]:
    """Yield each template with its value."""
    if isinstance(attributes, Mapping):
        for key, of in attributes.items():
            yield from _pairs(of, resolved[key])
    elif isinstance(attributes, list):
        for of, value in zip(attributes, resolved, strict=True):
            yield from _pairs(of, value)
    elif isinstance(attributes, str) and attributes != resolved:
        yield attributes, resolved


def is_template(text: str) -> bool:
    """Return whether a text is taken for a template."""
    return "{{" in text or "{%" in text


def template_of(text: str) -> str:
    """Return the template that resolves to the text, whatever it holds."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return f"{{{{ {text!r} }}}}"
    except TypeError:  # of `{{1}}`, a set in a set
        pass
    return f"{{{{ {repr(text)!r} }}}}"  # what it means in Python is then the text


def _resolved(value: Any, scope: Scope, where: str, *, field: str) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _resolved(of, scope, where, field=f"{field}.{key}" if field else str(key))
            for key, of in value.items()
        }
    if isinstance(value, list):
        return [_resolved(of, scope, where, field=f"{field}[{i}]") for i, of in enumerate(value)]
    if not isinstance(value, str) or not is_template(value) or field in JINJA_FIELDS:
        return value
    return _render(value, scope, f"{where}: {field}")


def _render(text: str, scope: Scope, where: str) -> Any:
    import jinja2

    try:
        with bounded(RENDER_SECONDS):
            value = _jinja().from_string(text).render(scope)
        if isinstance(value, jinja2.Undefined):
            str(value)  # which raises
    except Exception as error:  # of what a template does, or of Jinja
        raise ConfigError(
            where=where,
            expected="a template that can be resolved",
            found=f"{text!r}: {' '.join(str(error).split())}",
            remedy="set the variable, write {{ env('NAME', 'default') }}, or correct the template; "
            "it may name env, context.project_root and datetime",
        ) from None
    return value


@cache
def _jinja() -> "jinja2.Environment":
    """Return Jinja with values for results, as `dg` has it, and without access to Python's own."""
    from jinja2 import StrictUndefined
    from jinja2.nativetypes import NativeEnvironment
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class _NativeSandbox(ImmutableSandboxedEnvironment, NativeEnvironment):
        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_size(operator, left, right)
            return super().call_binop(context, operator, left, right)

    return _NativeSandbox(undefined=StrictUndefined)


def _check_size(operator: str, left: Any, right: Any) -> None:
    """Raise OverBoundError for a product that no bound could end while it is computed."""
    sizes = [len(of) if hasattr(of, "__len__") else abs(of) for of in (left, right)]
    is_repeated = any(hasattr(of, "__len__") for of in (left, right))
    if operator == "**" and sizes[1] > MOST_DIGITS:
        raise OverBoundError(f"a power of {sizes[1]:,}")
    if is_repeated and sizes[0] * sizes[1] > MOST_CHARACTERS:
        raise OverBoundError(f"more than {MOST_CHARACTERS:,} characters")


class _Environment:
    """The environment's variables. One that is not set may be asked for, as in `env.X or 'x'`, and
    is an error where its value is needed; of Dagster's own it is None, and "None" within a text."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "jinja")):  # what Jinja looks for in anything that it is given
            raise AttributeError(name)
        return os.environ.get(name, _not_set(name))

    def __call__(self, name: str, *default: object) -> Any:
        return os.environ.get(name, default[0] if default else _not_set(name))


def _not_set(name: str) -> "jinja2.Undefined":
    import jinja2

    class _NotSet(jinja2.Undefined):
        def __str__(self) -> str:
            raise jinja2.UndefinedError(f"the environment has no variable {name}")

    return _NotSet(name=name)

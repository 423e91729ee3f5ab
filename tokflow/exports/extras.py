"""Packages that only some formats need: installed as extras, imported where they are used."""

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

from tokflow.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Extra:
    """An optional package."""

    name: str
    """What stands in brackets: `pip install "dagster-tokflow[name]"`."""
    module: str
    """What is imported of it."""


def import_extra(module: str, *, extra: str, where: str) -> Any:
    """Return a module that comes with an extra.

    Raises: ConfigError that says what to install, where the module is not there. One that is
    there and lacks what it needs itself raises as any import does.
    """
    check_extra(Extra(name=extra, module=module), where=where)
    return importlib.import_module(module)


def check_extra(extra: Extra, *, where: str) -> None:
    """Make sure that `import_extra` finds a module, which is looked for and not imported.

    Raises: ConfigError.
    """
    if importlib.util.find_spec(extra.module) is None:
        raise ConfigError(
            where=where,
            expected=f"the package {extra.module}, which comes with the extra {extra.name}",
            found="none",
            remedy=f'run `pip install "dagster-tokflow[{extra.name}]"`',
        )

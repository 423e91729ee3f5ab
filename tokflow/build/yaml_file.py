"""Read the YAML file that declares a dataset: any mapping, each of its keys once."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from tokflow.errors import ConfigError

COMPONENT_TYPE = "tokflow.components.TextDataset"
"""The `type:` of a dataset."""

MAX_YAML_CHARS = 10_000_000
"""A file with so many is not parsed, for it declares no dataset."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds.

    Raises: ConfigError, with the line of a syntax error or of a key that stands twice.
    """
    return _parse(_read(path), path)


def _read(path: Path) -> str:
    found = f"more than {MAX_YAML_CHARS:,} characters"
    try:
        with path.open(encoding="utf-8") as file:
            if len(text := file.read(MAX_YAML_CHARS)) < MAX_YAML_CHARS:
                return text
    except FileNotFoundError:
        found = "no file"
    except (OSError, ValueError) as error:  # no UTF-8, or a path with NUL
        found = getattr(error, "strerror", None) or str(error)
    raise ConfigError(
        where=path,
        expected="a YAML file that declares a dataset",
        found=found,
        remedy="correct the path",
    )


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        fields = yaml.load(text, Loader=_StrictLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        expected, found = _said(str(getattr(error, "problem", None) or error))
        raise ConfigError(
            where=f"{path}: line {mark.line + 1}" if mark else path,
            expected=expected,
            found=found,
            remedy="correct the line",
        ) from None
    if not isinstance(fields, dict):
        raise ConfigError(
            where=path,
            expected="a mapping that declares a dataset",
            found=type(fields).__name__,
            remedy=f"begin with `type: {COMPONENT_TYPE}` and `attributes:`",
        )
    return fields


def _said(problem: str) -> tuple[str, str]:
    """Return what PyYAML expected and found, of `expected <block end>, but found '?'` or such."""
    expected, but, found = problem.replace(", but got ", ", but found ").partition(", but found ")
    if but:
        return expected.removeprefix("expected "), found
    return "YAML", problem.removeprefix("found ").replace("could not find expected", "no")


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader, but a key that stands twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<`: what it brings may be overridden
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r}, which is no word", key_node.start_mark
                )
            if key in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} twice", key_node.start_mark
                )
            keys.add(key)
        return super().construct_mapping(node, deep=deep)

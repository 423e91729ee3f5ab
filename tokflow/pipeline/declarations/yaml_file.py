"""Read a YAML file that declares datasets: mappings between `---`, each of their keys once."""

import sys
from collections.abc import Hashable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tokflow.errors import ConfigError
from tokflow.store.config import check_keys

STANDARD_INPUT = Path("-")
"""Stands for what is piped into a command; relative paths start at the current folder."""

COMPONENT_TYPE = "tokflow.components.TextDataset"
"""The `type:` of a dataset."""

MAX_YAML_CHARS = 10_000_000
"""A file with so many is not parsed, for it declares no dataset."""


COMPONENT_KEYS = ("type", "attributes", "template_vars_module", "requirements", "post_processing")
"""Keys beside `type`; what the last three ask for Dagster alone does."""


def read_documents(path: Path) -> list[dict[str, Any]]:
    """Return the mappings that a YAML file holds, one or more.

    Raises: ConfigError, with the line of a syntax error or of a key that stands twice.
    """
    where = place_of(path, 0)
    return [_mapping(document, where) for document in _parse(_read(path), where)]


def place_of(path: Path, index: int) -> str:
    """Return what messages call a document of a file, given its ordinal."""
    place = "standard input" if path == STANDARD_INPUT else str(path)
    return f"{place}: document {index + 1}" if index else place


def attributes_of(fields: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Return the attributes of the component that a document declares.

    Raises: ConfigError where it is no TextDataset, or has another key.
    """
    check_keys(fields, COMPONENT_KEYS, where=where)
    if fields.get("type") != COMPONENT_TYPE:
        raise ConfigError(
            where=f"{where}: type",
            expected=COMPONENT_TYPE,
            found=repr(fields["type"]) if "type" in fields else "none",
            remedy="correct it" if "type" in fields else "add it",
        )
    return _mapping(fields.get("attributes") or {}, f"{where}: attributes")


def _read(path: Path) -> str:
    found = f"more than {MAX_YAML_CHARS:,} characters"
    try:
        text = _standard_input() if path == STANDARD_INPUT else _start_of(path)
        if len(text) < MAX_YAML_CHARS:
            return text
    except FileNotFoundError:
        found = "no file"
    except (OSError, ValueError) as error:  # no UTF-8, or a path with NUL
        found = getattr(error, "strerror", None) or str(error)
    raise ConfigError(
        where=place_of(path, 0),
        expected="a YAML file that declares a dataset",
        found=found,
        remedy="correct the path",
    )


@cache
def _standard_input() -> str:
    """Return the text, which comes but once."""
    return sys.stdin.buffer.read(MAX_YAML_CHARS).decode()


def _start_of(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(MAX_YAML_CHARS)


def _parse(text: str, path: str) -> list[Any]:
    try:
        documents = list(yaml.load_all(text, Loader=_StrictLoader))
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        expected, found = _said(str(getattr(error, "problem", None) or error))
        raise ConfigError(
            where=f"{path}: line {mark.line + 1}" if mark else path,
            expected=expected,
            found=found,
            remedy="correct the line",
        ) from None
    return documents or [None]


def _mapping(fields: object, where: object) -> dict[str, Any]:
    if isinstance(fields, dict):
        return fields
    raise ConfigError(
        where=where,
        expected="a mapping that declares a dataset",
        found=type(fields).__name__,
        remedy=f"begin with `type: {COMPONENT_TYPE}` and `attributes:`",
    )


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

"""YAML files that declare datasets, and the templates in them.

A file holds mappings between `---`, each of their keys once. One declares a dataset or several:
`datasets:` by their names, and the `defaults:` that they share.
"""

import ast
import os
import re
import sys
from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tokflow.errors import ConfigError
from tokflow.split.rule import with_parts
from tokflow.store.config import check_keys
from tokflow.tokenizers.tokenizer import with_kind

STANDARD_INPUT = Path("-")
"""Path that stands for standard input; relative paths in it start at the current folder."""

COMPONENT_TYPE = "tokflow.components.TextDataset"
"""The `type:` of a dataset."""

MAX_YAML_CHARS = 10_000_000
"""Length from which a file is not parsed, for it declares no dataset."""

COMPONENT_KEYS = ("type", "attributes", "template_vars_module", "requirements", "post_processing")
"""Keys of a component; the last three are for Dagster only."""

KEYS = ("defaults", "datasets")

OF_SOURCES = (
    "raw",
    "documents",
    "tokenizer",
    "attributes",
    "near_duplicates",
    "exclude",
    "select",
    "strata",
    "split",
)
"""Sections that a mixture takes from its sources, not from the defaults."""

JINJA_FIELDS = ("documents.chat_template",)
"""Fields that hold Jinja of their own, in which no template is resolved."""

_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_DEFAULT = rf"{_QUOTED}|-?[\d.]+"
_TEMPLATE = re.compile(
    rf"\{{\{{\s*(?:env\.(\w+)|env\(\s*({_QUOTED})\s*(?:,\s*({_DEFAULT})\s*)?\)|({_QUOTED}))\s*\}}\}}"
)
"""`env.NAME`, `env('NAME', 'default')`, or a text in quotes, by which any text can be written."""


def each_dataset(
    attributes: Mapping[str, Any], *, where: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place, as messages name it, and the attributes of each declared dataset.

    What a dataset says takes the place of the default, in a section (`raw`, `documents`, ...) field
    by field; null brings back what tokflow has without one. A tokenizer of another kind has nothing
    of the default's. Its name is its key in `datasets`. A mixture has no default of what its
    sources have. Attributes without `datasets` are those of one dataset.

    Raises: ConfigError.
    """
    if not any(key in attributes for key in KEYS):
        yield where, dict(attributes)
        return
    check_keys(attributes, KEYS, where=where)
    defaults = _section(attributes.get("defaults"), f"{where}: defaults")
    datasets = _section(attributes.get("datasets"), f"{where}: datasets")
    if not datasets:
        raise ConfigError(
            where=f"{where}: datasets",
            expected="datasets by their names, for there are defaults",
            found="none",
            remedy="add one, as in `datasets: {code: {raw: {files: code/*.parquet}}}`",
        )
    for name, fields in datasets.items():
        own = _section(fields, place := f"{where}: datasets.{name}")
        for given, of in ((own, place), (defaults, f"{where}: defaults")):
            if "name" in given:
                raise ConfigError(
                    where=f"{of}.name",
                    expected="none, for a dataset has the name that is its key in `datasets`",
                    found=repr(given["name"]),
                    remedy="leave it out",
                )
        yield place, {"name": name, **_merged(defaults, own)}


def _merged(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    defaults, own = _written_out(defaults), _written_out(own)
    result = {**defaults, **own}
    for section in own.keys() & defaults.keys() - {"strata"}:  # whose order decides
        both = defaults[section], own[section]
        if all(isinstance(of, Mapping) for of in both):
            kinds = [of["kind"] for of in both if section == "tokenizer" and "kind" in of]
            is_other = len(kinds) == 2 and kinds[0] != kinds[1]
            fields = {**({} if is_other else both[0]), **both[1]}
            result[section] = {name: of for name, of in fields.items() if of is not None}
    if result.get("mixture") is not None:
        result |= {name: own.get(name) for name in OF_SOURCES}
    return {name: of for name, of in result.items() if of is not None}


def _written_out(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with the short forms of split and tokenizer written out."""
    found = dict(fields)
    if "split" in fields:
        found["split"] = with_parts(fields["split"])
    if "{" not in str(name := fields.get("tokenizer")) and isinstance(name, str):
        found["tokenizer"] = with_kind(name)
    return found


def _section(fields: object, where: str) -> dict[str, Any]:
    remedy = "write `datasets: {name: {raw: ..., ...}, ...}`, and `defaults:` as a dataset"
    return _mapping({} if fields is None else fields, where, "a mapping", remedy)


def resolve_templates(value: Any, *, where: str, field: str = "") -> Any:
    """Return the attributes of a dataset with every template in a value resolved.

    A text that holds `{{` or `{%` is a template; any other is taken as it is. Templates name
    variables of the environment: `{{ env.NAME }}`, `{{ env('NAME', 'default') }}`. The value is
    what the whole resolved text means in Python, a number for `8192`, be it of one template or of
    `20{{ env.YEAR }}`; text that means nothing there is text.

    Raises: ConfigError, with the field, for a variable that is not set and any other template.
    """
    if isinstance(value, Mapping):
        fields = {key: f"{field}.{key}".removeprefix(".") for key in value}
        return {key: resolve_templates(value[key], where=where, field=fields[key]) for key in value}
    if isinstance(value, list):
        each = enumerate(value)
        return [resolve_templates(of, where=where, field=f"{field}[{i}]") for i, of in each]
    if not isinstance(value, str) or not is_template(value) or field in JINJA_FIELDS:
        return value
    if is_template(_TEMPLATE.sub("", value)):
        raise ConfigError(
            where=f"{where}: {field}",
            expected="a template that names a variable, as {{ env.NAME }} or "
            "{{ env('NAME', 'default') }}",
            found=repr(value),
            remedy="set a variable to the value; relative paths start at the project's folder "
            "without a template",
        )
    return _meaning(_TEMPLATE.sub(lambda match: _text_of(match, f"{where}: {field}"), value))


def _text_of(match: re.Match[str], where: str) -> str:
    """Return the text of a template: a variable's, its default, or the one in quotes."""
    word, quoted_name, default, quoted = match.groups()
    if quoted:
        return str(_meaning(quoted))
    name = word or str(_meaning(quoted_name))
    if default is None and name not in os.environ:
        raise ConfigError(
            where=where,
            expected=f"a variable {name} of the environment",
            found="none",
            remedy=f"set it, or write {{{{ env('{name}', 'default') }}}}",
        )
    return os.environ.get(name, str(_meaning(default or "")))


def _meaning(text: str) -> Any:
    """Return the Python value that a text is the literal of; the text itself if of none."""
    try:
        return ast.literal_eval(ast.parse(text, mode="eval"))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def is_template(text: str) -> bool:
    """Return whether a text is a template."""
    return "{{" in text or "{%" in text


def as_template(text: str) -> str:
    """Return a template that resolves to any text."""
    return f"{{{{ {(text if _meaning(text) is text else repr(text))!r} }}}}"


def with_templates(
    error: ConfigError, attributes: Mapping[str, Any], resolved: Mapping[str, Any]
) -> ConfigError:
    """Return the error with templates in the place of their values, which can be secret."""
    found, remedy = error.found, error.remedy
    for text, value in _pairs(attributes, resolved):
        is_text = isinstance(value, str) and value != ""
        if is_text or found == repr(value):
            found = found.replace(repr(value), repr(text))
            remedy = remedy.replace(str(value), text) if found != error.found else remedy
    return ConfigError(**{**error.fields(), "found": found, "remedy": remedy})


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


def read_documents(path: Path) -> list[dict[str, Any]]:
    """Return the mappings that a YAML file holds, one or more.

    Raises: ConfigError, with the line of a syntax error or of a key that stands twice.
    """
    where, found, text = shown_document(path, 0), f"more than {MAX_YAML_CHARS:,} characters", None
    try:
        if path == STANDARD_INPUT:
            text = _standard_input()
        else:
            with path.open(encoding="utf-8") as file:
                text = file.read(MAX_YAML_CHARS)
    except FileNotFoundError:
        found = "no file"
    except (OSError, ValueError) as error:  # no UTF-8, or a path with NUL
        found = getattr(error, "strerror", None) or str(error)
    if text is None or len(text) >= MAX_YAML_CHARS:
        expected, remedy = "a YAML file that declares a dataset", "correct the path"
        raise ConfigError(where=where, expected=expected, found=found, remedy=remedy)
    try:
        documents = list(yaml.load_all(text, Loader=_StrictLoader)) or [None]
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        expected, found = _said(str(getattr(error, "problem", None) or error))
        raise ConfigError(
            where=f"{where}: line {mark.line + 1}" if mark else where,
            expected=expected,
            found=found,
            remedy="correct the line",
        ) from None
    return [_mapping(document, where) for document in documents]


def shown_document(path: Path, index: int) -> str:
    """Return the place of a document of a file, as messages name it."""
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


@cache
def _standard_input() -> str:
    """Return the text of standard input, which can be read only once."""
    return sys.stdin.buffer.read(MAX_YAML_CHARS).decode()


def _mapping(
    fields: object,
    where: str,
    expected: str = "a mapping that declares a dataset",
    remedy: str = f"begin with `type: {COMPONENT_TYPE}` and `attributes:`",
) -> dict[str, Any]:
    if isinstance(fields, dict):
        return fields
    found = type(fields).__name__
    raise ConfigError(where=where, expected=expected, found=found, remedy=remedy)


def _said(problem: str) -> tuple[str, str]:
    """Split a message of PyYAML into what it expected and what it found."""
    expected, but, found = problem.replace(", but got ", ", but found ").partition(", but found ")
    if but:
        return expected.removeprefix("expected "), found
    return "YAML", problem.removeprefix("found ").replace("could not find expected", "no")


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader with an error for duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<`: what it brings may be overridden
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable) or key in keys:
                problem = " twice" if isinstance(key, Hashable) else ", which is no word"
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r}{problem}", key_node.start_mark
                )
            keys.add(key)
        return super().construct_mapping(node, deep=deep)

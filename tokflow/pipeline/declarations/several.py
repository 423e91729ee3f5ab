"""Several datasets in one YAML: `datasets:` by their names, and the `defaults:` that they share."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokflow.errors import ConfigError
from tokflow.store.config import check_keys

KEYS = ("defaults", "datasets")

OF_SOURCES = ("raw", "documents", "tokenizer", "split")
"""Sections that a mixture has from its sources, and not from the defaults."""


def datasets_in(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what messages call each dataset that a YAML file declares, and its attributes.

    Raises: ConfigError.
    """
    from tokflow.pipeline.declarations.yaml_file import attributes_of, place_of, read_documents

    for index, fields in enumerate(read_documents(path)):
        place = place_of(path, index)
        if "type" in fields or "attributes" in fields:
            fields = attributes_of(fields, where=place)
        yield from each_dataset(fields, where=place)


def each_dataset(
    attributes: Mapping[str, Any], *, where: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what messages call each dataset that the attributes declare, and its own attributes.

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
    defaults = _mapping(attributes.get("defaults"), f"{where}: defaults")
    datasets = _mapping(attributes.get("datasets"), f"{where}: datasets")
    if not datasets:
        raise ConfigError(
            where=f"{where}: datasets",
            expected="datasets by their names, for there are defaults",
            found="none",
            remedy="add one, as in `datasets: {code: {raw: {files: code/*.parquet}}}`",
        )
    for name, fields in datasets.items():
        own = _mapping(fields, place := f"{where}: datasets.{name}")
        for given, of in ((own, place), (defaults, f"{where}: defaults")):
            _check_nameless(given, of)
        yield place, {"name": name, **_merged(defaults, own)}


def _merged(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    defaults, own = _written_out(defaults), _written_out(own)
    result = {**defaults, **own}
    for section in own.keys() & defaults.keys():
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
    """Return the fields with a split's shares and a tokenizer's name as what they stand for."""
    from tokflow.split.rule import with_parts
    from tokflow.tokenizers.tokenizer import with_kind

    found = dict(fields)
    if "split" in fields:
        found["split"] = with_parts(fields["split"])
    if "{" not in str(name := fields.get("tokenizer")) and isinstance(name, str):
        found["tokenizer"] = with_kind(name)
    return found


def _mapping(fields: object, where: str) -> Mapping[str, Any]:
    if fields is None:
        return {}
    if isinstance(fields, Mapping):
        return fields
    raise ConfigError(
        where=where,
        expected="a mapping",
        found=type(fields).__name__,
        remedy="write `datasets: {name: {raw: ..., ...}, ...}`, and `defaults:` as a dataset",
    )


def _check_nameless(fields: Mapping[str, Any], where: str) -> None:
    if "name" in fields:
        raise ConfigError(
            where=f"{where}.name",
            expected="none, for a dataset has the name that is its key in `datasets`",
            found=repr(fields["name"]),
            remedy="leave it out",
        )

"""Causes of staleness: what differs from the newest output of the same stage and file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from tokflow.store.manifest import Manifest, Recipe
from tokflow.store.versions import described_changes

Cause = Literal[
    "missing", "damaged", "file changed", "config changed", "code changed", "input changed"
]


def why(newest: Manifest, expected: Recipe) -> tuple[Cause, tuple[str, ...]]:
    """Compare the newest output with the one to be made; the first cause is the root."""
    if newest.version != expected.version:
        return "code changed", (f"version {newest.version} to {expected.version}",)
    libraries = expected.config.get("libraries", {})
    if libraries != newest.config.get("libraries", {}):
        return "code changed", tuple(described_changes(libraries) or ["older libraries again"])
    changed = _changed_parents(expected.parents, newest.parents)
    fields = list(_changed_fields(expected.config, newest.config))
    if newest.stage == "tokenizer":
        files, inputs = list(changed.values()), []
    else:
        files = [str(newest.partition)] if changed.pop("raw", None) else []
        inputs = list(changed.values())
    if newest.stage == "tokens" and "engine" in expected.config and "engine" not in newest.config:
        inputs.append("gigatoken was found wrong with this tokenizer")
    if _has_moved(expected, newest):
        inputs.append("the files before it")
    found: tuple[tuple[Cause, list[str]], ...] = (
        ("config changed", fields),
        ("file changed", files),
        ("input changed", inputs),
    )
    causes = [cause for cause, names in found if names]
    details = [_some(names) for _, names in found if names]
    return (causes[0] if causes else "config changed"), tuple(details)


def _has_moved(expected: Recipe, newest: Manifest) -> bool:
    """Return whether a file stands elsewhere in the dataset than it did."""
    now = expected.config.get("position", {})
    return any(now[name] != at for name, at in newest.config.get("position", {}).items())


def _changed_parents(expected: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """Return the parents that differ, each with what to call it."""
    names = sorted({*expected, *found})
    return {
        name: f"{name} is new"
        if name not in found
        else f"{name} is gone"
        if name not in expected
        else name
        for name in names
        if expected.get(name) != found.get(name)
    }


def _changed_fields(
    expected: Mapping[str, Any], found: Mapping[str, Any], prefix: str = ""
) -> Iterator[str]:
    """Yield `documents.text: 'a' to 'b'` for each field of `found` that is another now."""
    for name, value in found.items():
        if name == "position":
            continue
        if name not in expected:
            if prefix:
                yield f"{prefix}{name} is gone"
            continue
        old, new = _plain(value), _plain(expected[name])
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _changed_fields(new, old, f"{prefix}{name}.")
            yield from (f"{prefix}{name}.{other} is new" for other in new if other not in old)
        elif old != new:
            text = f"{prefix}{name}: {json.dumps(old)} to {json.dumps(new)}"
            yield text if len(text) <= 80 else f"{prefix}{name}"


def _plain(value: object) -> object:
    """Return a field as JSON gives it back, named parts as a mapping."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if not isinstance(value, tuple | list):
        return value
    items = [_plain(item) for item in value]
    is_named = items and all(isinstance(item, list) and len(item) == 2 for item in items)
    return dict(cast(list[tuple[str, object]], items)) if is_named else items


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest

"""Versions of the libraries that make tokens and files: kept beside an output, in its run.json.

Another version is taken to make the same bytes, so it makes nothing stale, until it is known not
to: then it stands in `CHANGES`, and from that version on it is part of the recipes.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

_ENGINES = ("gigatoken", "tokenizers", "tiktoken", "sentencepiece", "transformers")
LIBRARIES = (*_ENGINES, "jinja2", "pyarrow", "backports.zstd", "pylance", "tensorstore")
"""Packages that can make the bytes of an output."""

_ENGINES_OF: Mapping[str, tuple[str, ...]] = {
    "bytes": (),
    "sentencepiece": ("gigatoken", "sentencepiece"),
    "tiktoken": ("gigatoken", "tiktoken"),
}

_MODULES = {"pylance": "lance"}
"""Packages whose module has another name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A version from which on a library is known to make other bytes."""

    library: str
    version: str
    stages: tuple[str, ...]
    what: str
    """The difference, to follow `tokenizers 0.30 is known to`."""


CHANGES: tuple[Change, ...] = (
    Change(
        library="tokenizers",
        version="1.0",
        stages=("tokens",),
        what="split text at other places beside a letter of Unicode 17, and compose more letters",
    ),
)
"""Known changes, ordered by version."""


def loaded_versions() -> dict[str, str]:
    """Return the versions of the libraries that this process has loaded, of those that can make
    the bytes of an output."""
    names = [name for name in LIBRARIES if _MODULES.get(name, name) in sys.modules]
    return {name: found for name in names if (found := installed_version(name)) is not None}


def known_changes(stage: str, kind: str) -> dict[str, dict[str, str]]:
    """Return the fields in a recipe of `stage` for the changes that installed libraries have.

    `kind`: that of the tokenizer, or the format of an export. Empty where no change is known.
    """
    engines = _ENGINES_OF.get(kind, _ENGINES[:2])
    found = {
        library: since
        for library in LIBRARIES
        if library in engines or library not in _ENGINES
        if (since := newest_change(library, installed_version(library) or "", stage))
    }
    return {"libraries": found} if found else {}


def newest_change(library: str, version: str, stage: str) -> str | None:
    """Return the newest version, up to `version`, from which on outputs of `stage` have other
    bytes; None if no change is known."""
    changes = [of for of in CHANGES if of.library == library and stage in of.stages]
    known = [of.version for of in changes if _numbers(of.version) <= _numbers(version)]
    return known[-1] if known else None


def described_changes(libraries: Mapping[str, str]) -> list[str]:
    """Return a sentence for each of the changes in a recipe's `libraries`."""
    return [
        f"{change.library} {change.version} is known to {change.what}"
        for change in CHANGES
        if libraries.get(change.library) == change.version
    ]


def changed_since(versions_of_outputs: Iterable[Mapping[str, str]]) -> list[str]:
    """Return a sentence for each library of which another version is installed than the one that
    is in the run.json of an output."""
    changes = {
        (library, version, now)
        for versions in versions_of_outputs
        for library, version in versions.items()
        if (now := installed_version(library)) is not None and now != version
    }
    found = []
    for library, version, now in sorted(changes):
        known = (
            f"known to {of.what}"
            for of in CHANGES
            if of.library == library and _numbers(version) < _numbers(of.version) <= _numbers(now)
        )
        found.append(f"{library} {version} -> {now} since: {next(known, 'not known to differ')}")
    return found


def installed_versions() -> dict[str, str]:
    """Return the versions of tokflow and of the installed libraries that can make bytes."""
    names = ("dagster-tokflow", *LIBRARIES)
    return {name: found for name in names if (found := installed_version(name)) is not None}


def other_versions(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """Return what is installed in two versions, of what is installed on both machines."""
    return [
        f"{name} {found[name]} in place of {version}"
        for name, version in expected.items()
        if found.get(name, version) != version
    ]


@cache
def installed_version(library: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # 17 ms, when it is asked for

    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])

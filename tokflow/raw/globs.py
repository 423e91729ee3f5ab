"""The regular files of this machine that match a pattern."""

import fnmatch
import os
import stat
from collections.abc import Iterator, Sequence

from tokflow.errors import RawFileError, four_parts

_Identity = tuple[int, int]


def has_wildcard(text: str) -> bool:
    """Say whether `text` holds `*`, `?` or `[`."""
    return any(character in text for character in "*?[")


def files_below(folder: str, components: Sequence[str]) -> set[str]:
    """Return the paths below `folder` whose names match `components`, one per level.

    `**` stands for any number of folders, and as the last component for all files below. Hidden
    names match only a component that begins with a dot. Links are followed; `**` does not enter
    a folder that it is already in, so a link to a folder above ends there.

    Raises: RawFileError for a folder that cannot be listed and for a matching link that leads
    nowhere: leaving them out would lose data silently.
    """
    return set(_walk(folder, list(components), frozenset()))


def _walk(folder: str, components: list[str], above: frozenset[_Identity]) -> Iterator[str]:
    name, rest = components[0], components[1:]
    if name == "**":
        yield from _walk_all(folder, rest or ["*"], above)
    elif rest:
        for path in _names(folder, name):
            if os.path.isdir(path):  # noqa: PTH112 (text paths: twice as fast on 100,000 files)
                yield from _walk(path, rest, above)
    else:
        yield from (path for path in _names(folder, name) if _is_regular_file(path))


def _walk_all(folder: str, rest: list[str], above: frozenset[_Identity]) -> Iterator[str]:
    try:
        status = os.stat(folder)  # noqa: PTH116
    except FileNotFoundError:
        return
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        return
    yield from _walk(folder, rest, frozenset())
    for entry in _entries(folder):
        if not entry.name.startswith(".") and os.path.isdir(entry.path):  # noqa: PTH112
            yield from _walk_all(entry.path, rest, above | {identity})


def _names(folder: str, pattern: str) -> Iterator[str]:
    if not has_wildcard(pattern):
        path = os.path.join(folder, pattern)  # noqa: PTH118
        if os.path.lexists(path):
            yield path
        return
    for entry in _entries(folder):
        is_shown = pattern.startswith(".") or not entry.name.startswith(".")
        if is_shown and fnmatch.fnmatchcase(entry.name, pattern):
            yield entry.path


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RawFileError(
            four_parts(
                where=folder,
                expected="a folder that can be listed",
                found=error.strerror or str(error),
                remedy="grant permission to read it, or name files that are not below it",
            )
        ) from error


def _is_regular_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116
    except OSError as error:
        raise RawFileError(
            four_parts(
                where=path,
                expected="a file, as its name matches a pattern of raw.files",
                found=f"a name that leads to none ({error.strerror})",
                remedy="mend or remove the link",
            )
        ) from error

"""Match a pattern with the files, the folders and what else is on this machine."""

import fnmatch
import os
import posixpath
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tokflow.errors import RawFileError

_Identity = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Matches:
    """Files, folders and others that a pattern matches, by path."""

    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    others: dict[str, str] = field(default_factory=dict)
    """By path, the kind of each thing that is no file and no folder."""

    def under(self, folder: str) -> "Matches":
        """Return the matches with `folder` before each path."""
        return Matches(
            files={posixpath.join(folder, path) for path in self.files},
            folders={posixpath.join(folder, path) for path in self.folders},
            others={posixpath.join(folder, path): kind for path, kind in self.others.items()},
        )


def has_wildcard(text: str) -> bool:
    """Return whether `text` holds `*`, `?` or `[`, other than for themselves as in `[[]`."""
    return re.search(r"[*?[]", re.sub(r"\[[*?[]\]", "", text)) is not None


def escaped(text: str) -> str:
    """Return the pattern that `text` alone matches."""
    return re.sub(r"[*?[]", r"[\g<0>]", text)


def unescaped(pattern: str) -> str:
    """Return what a pattern without wildcards matches."""
    return re.sub(r"\[([*?[])\]", r"\1", pattern)


def find_below(folder: str, components: Sequence[str]) -> Matches:
    """Return what is below `folder` and has names that match `components`, one per level.

    `**` stands for any number of folders, and as the last component for all files below. Hidden
    names match only a component that begins with a dot. Links are followed; `**` does not enter
    a folder that it is already in, so a link to a folder above ends there. A link that leads
    nowhere and stands where a folder is to be entered is one of the `others`.

    Raises: RawFileError for a folder that cannot be listed and for a matching link that leads
    nowhere: leaving them out would lose data silently.
    """
    matches = Matches()
    for path in dict.fromkeys(_walk(folder, list(components), frozenset())):
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116
        except OSError as error:
            if not path.endswith("/"):
                raise _no_file(path, error) from error
            matches.others[path.rstrip("/")] = "a link that leads nowhere"
            continue
        if stat.S_ISREG(mode):
            matches.files.add(path)
        elif stat.S_ISDIR(mode):
            matches.folders.add(path)
        else:
            matches.others[path] = _kind(mode)
    return matches


def list_folder(folder: str) -> Matches:
    """Return the files below a folder that is read as one table; nothing hidden.

    A link to a folder is one of the `others` and not entered, since what it leads to may be read
    already, or be no part of the table; so is a link that leads nowhere.

    Raises: RawFileError for a folder that cannot be listed.
    """
    matches = Matches()
    waiting = [folder]
    while waiting:
        for entry in _entries(waiting.pop()):
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif os.path.isfile(entry.path):  # noqa: PTH113
                matches.files.add(entry.path)
            else:
                matches.others[entry.path] = _other(entry)
    return matches


def _other(entry: os.DirEntry[str]) -> str:
    """Return what a thing in a folder is that is neither a file nor a folder.

    Raises: RawFileError where that cannot be told.
    """
    try:
        mode = os.stat(entry.path).st_mode  # noqa: PTH116
    except OSError as error:
        if not entry.is_symlink():
            raise _no_file(entry.path, error) from error
        return "a link that leads nowhere"
    return "a link to a folder" if stat.S_ISDIR(mode) else _kind(mode)


def _kind(mode: int) -> str:
    """Return what a thing that is neither a file nor a folder is."""
    kinds = {stat.S_IFIFO: "a fifo", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _walk(folder: str, components: list[str], above: frozenset[_Identity]) -> Iterator[str]:
    """Yield the paths that match, and with a `/` at its end each folder that is not there."""
    name, rest = components[0], components[1:]
    if name == "**":
        yield from _walk_all(folder, rest or ["*"], above)
    elif rest:
        for path in _names(folder, name):
            if os.path.isdir(path):  # noqa: PTH112 (text paths: twice as fast on 100,000 files)
                yield from _walk(path, rest, above)
            elif _leads_nowhere(path):
                yield f"{path}/"
    else:
        yield from _names(folder, name)


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
        if entry.name.startswith("."):
            continue
        if os.path.isdir(entry.path):  # noqa: PTH112
            yield from _walk_all(entry.path, rest, above | {identity})
        elif entry.is_symlink() and _leads_nowhere(entry.path):
            yield f"{entry.path}/"


def _names(folder: str, pattern: str) -> Iterator[str]:
    if not has_wildcard(pattern):
        path = os.path.join(folder, unescaped(pattern))  # noqa: PTH118
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
            where=folder,
            expected="a folder that can be listed",
            found=error.strerror or str(error),
            remedy="grant permission to read it, or name files that are not below it",
        ) from error


def _leads_nowhere(path: str) -> bool:
    return os.path.lexists(path) and not os.path.exists(path)  # noqa: PTH110


def _no_file(path: str, error: OSError) -> RawFileError:
    return RawFileError(
        where=path,
        expected="a file, as its name matches a pattern of raw.files",
        found=f"a link that leads to no file ({error.strerror})",
        remedy="mend or remove the link",
    )

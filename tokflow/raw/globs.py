"""Match a pattern with the files, the folders and what else is on this machine.

Spark, Dask and Hive write a table as a folder of files, which `open_folders` puts in its place.
"""

import fnmatch
import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from posixpath import splitext
from typing import Literal, TypeAlias, TypeVar

from tokflow.errors import RawFileError

T = TypeVar("T")
_Identity = tuple[int, int]


FILE, FOLDER = "a file", "a folder"
Matches: TypeAlias = dict[str, str]
"""The kind of each thing that a pattern matches, by path: FILE, FOLDER, or another."""
FileFormat: TypeAlias = Literal["parquet", "jsonl", "csv", "tsv", "txt", "arrow"]

SUFFIXES: dict[str, FileFormat] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "txt",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
"""Suffixes that `format: auto` goes by, in capitals too, before a suffix of compression."""

COMPRESSED_SUFFIXES = (".gz", ".zst", ".zstd", ".bz2", ".xz", ".lz4")
"""Suffixes of files that are decompressed as they are read."""


def format_of_name(name: str) -> FileFormat | None:
    """Return the format that `format: auto` takes for a file of that name; None if it is none."""
    stem, suffix = splitext(name.lower())  # a Path of each of many files takes longer than all else
    return SUFFIXES.get(splitext(stem)[1] if suffix in COMPRESSED_SUFFIXES else suffix)


def has_wildcard(text: str) -> bool:
    """Return whether `text` holds `*`, `?` or `[`, other than for themselves as in `[[]`."""
    return re.search(r"[*?[]", re.sub(r"\[[*?[]\]", "", text)) is not None


def escaped(text: str) -> str:
    """Return the pattern that `text` alone matches."""
    return re.sub(r"[*?[]", r"[\g<0>]", text)


def unescaped(pattern: str) -> str:
    """Return what a pattern without wildcards matches."""
    return re.sub(r"\[([*?[])\]", r"\1", pattern)


def path_regex(pattern: str) -> re.Pattern[str]:
    """Return a regular expression of the whole paths that fsspec's `glob` finds for a pattern.

    It ends soon on any path, whatever a stranger's card has for a pattern: what stands before a
    wildcard is taken where it is first found, and is not looked for again, which changes no match
    but this: brackets may stand for a `/`, and in `*[!a]*` they do so for fsspec to match `x/y`;
    here they stand for the `x`, which comes first, and nothing matches.
    """
    *above, last = pattern.split("/")
    runs = [""]  # of names between any number of folders
    for name in above:
        if name == "**":
            runs.append("")
        else:
            runs[-1] += f"(?>{_name_regex(name)}/)"
    runs[-1] += ".*" if last == "**" else _name_regex(last)
    folders = "(?:[^/]++/)*?"
    *before, behind = [runs[0], *(folders + run for run in runs[1:])]
    return re.compile(f"(?s:{''.join(f'(?>{run})' for run in before)}{behind})\\Z")


def select(found: Mapping[str, T], below: Sequence[str]) -> dict[str, T]:
    """Return what has a path that matches `below`, a name for each level, of what is not on this
    disk.

    As on this disk hidden names match only a pattern that names the dot; there is no way to know
    which component matched which, so one dot in the pattern admits all.
    """
    is_match = path_regex("/".join((*below, *(("*",) if below[-1] == "**" else ())))).match
    may_hide = any(name.startswith(".") for name in below)
    return {
        path: of
        for path, of in found.items()
        if is_match(path) and (may_hide or "/." not in f"/{path}")
    }


def _name_regex(pattern: str) -> str:
    from fsspec.utils import glob_translate

    within = "[^/]*"
    regex: str = glob_translate(re.sub(r"\*+", "*", pattern))
    regex = regex.removeprefix("(?s:").removesuffix(r")\Z")
    *before, behind = regex.split(within)
    first, *middle = before or [""]
    atomic = "".join(f"(?>{within}?{fixed})" for fixed in middle)
    return first + atomic + (within if before else "") + behind


def find_below(folder: str, components: Sequence[str]) -> Matches:
    """Return what is below `folder` and has names that match `components`, one per level.

    `**` stands for any number of folders, and as the last component for all files below. Hidden
    names match only a component that begins with a dot. Links are followed; `**` does not enter
    a folder that it is already in, so a link to a folder above ends there. A link that leads
    nowhere and stands where a folder is to be entered has a kind of its own.

    Raises: RawFileError for a folder that cannot be listed and for a matching link that leads
    nowhere: leaving them out would lose data silently.
    """
    found: Matches = {}
    for path in _walk(folder, components, frozenset()):
        bare = path.rstrip("/")
        found[bare] = found.get(bare) or _kind(bare, may_dangle=path != bare)
    return found


def list_folder(folder: str) -> Matches:
    """Return the files below a folder that is read as one table; nothing hidden.

    A link to a folder has a kind of its own and is not entered: what it leads to may be read
    already, or be no part of the table; so has a dangling link.

    Raises: RawFileError for a folder that cannot be listed.
    """
    kinds: Matches = {}
    waiting = [folder]
    while waiting:
        for entry in _entries(waiting.pop()):
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            else:
                kind = _kind(entry.path, may_dangle=entry.is_symlink())
                kinds[entry.path] = "a link to a folder" if kind == FOLDER else kind
    return kinds


_KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: FOLDER,
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
}


def _kind(path: str, *, may_dangle: bool) -> str:
    """Return the kind of thing at a path, which must exist unless it `may_dangle`.

    Raises: RawFileError.
    """
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except OSError as error:
        if may_dangle:
            return "a link that leads nowhere"
        expected = "a file, as its name matches a pattern of raw.files"
        found = f"a link that leads to no file ({error.strerror})"
        remedy = "fix or remove the link"
        raise RawFileError(where=path, expected=expected, found=found, remedy=remedy) from error
    return _KINDS.get(stat.S_IFMT(mode), "a device")


def _walk(folder: str, names: Sequence[str], above: frozenset[_Identity]) -> Iterator[str]:
    """Yield the paths that match, and with a `/` at its end each folder that is not there. `above`:
    the folders that `**` is in."""
    name, rest, identities = names[0], names[1:], above
    if name == "**":
        try:
            status = os.stat(folder)  # noqa: PTH116
        except FileNotFoundError:
            return
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            return
        yield from _walk(folder, rest or ["*"], frozenset())
        name, rest, identities = "*", names, above | {identity}
    for path in _names(folder, name, are_entered=len(rest) > 0):
        if rest and path[-1] != "/":
            yield from _walk(path, rest, identities)
        else:
            yield path


def _names(folder: str, pattern: str, *, are_entered: bool) -> Iterator[str]:
    """Yield what a name of a pattern matches; where they are entered, folders alone."""
    if not has_wildcard(pattern):
        path = os.path.join(folder, unescaped(pattern))  # noqa: PTH118
        if os.path.isdir(path) or (os.path.lexists(path) and not are_entered):  # noqa: PTH112
            yield path
        elif are_entered and os.path.islink(path) and not os.path.exists(path):  # noqa: PTH110, PTH114
            yield f"{path}/"
        return
    is_any, may_hide = pattern == "*", pattern.startswith(".")
    for entry in _entries(folder):
        is_shown = may_hide or not entry.name.startswith(".")
        if not is_shown or not (is_any or fnmatch.fnmatchcase(entry.name, pattern)):
            continue
        if not are_entered or entry.is_dir(follow_symlinks=False):
            yield entry.path
        elif entry.is_symlink():  # text paths, and links alone: twice as fast on 100,000 files
            if os.path.isdir(entry.path):  # noqa: PTH112
                yield entry.path
            elif not os.path.exists(entry.path):  # noqa: PTH110
                yield f"{entry.path}/"


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        expected = "a folder that can be listed"
        found = error.strerror or str(error)
        remedy = "grant permission to read it, or name files that are not below it"
        raise RawFileError(where=folder, expected=expected, found=found, remedy=remedy) from error


def open_folders(
    matches: Matches, *, list_below: Callable[[str], Matches], are_entered: bool
) -> Matches:
    """Return `matches` with the files that its folders stand for in place of the folders.

    A folder with a name as of a data file, such as `x.parquet`, stands for all files of that
    format below it. What begins with `_` there (`_SUCCESS`, `_metadata`) is passed over as by
    Spark itself, and so is what is hidden. What `list_below` finds there is all that is read of
    it. Any other folder stays a folder, unless the pattern matches in it, too (`are_entered`).
    """
    found: Matches = {}
    opened = set[str]()
    for folder in sorted(path for path, kind in matches.items() if kind == FOLDER):
        name = posixpath.basename(folder)
        format_ = format_of_name(name)
        if _is_below(folder, opened) or (format_ is None and are_entered):
            continue
        below: Matches = {}
        for path, kind in list_below(folder).items() if format_ is not None else ():
            if kind != FOLDER and not is_ignored(path[len(folder) + 1 :]):
                is_other = kind == FILE and format_of_name(posixpath.basename(path)) != format_
                below[path] = f"no {format_} file, in the folder {name}" if is_other else kind
        if FILE in below.values():
            opened.add(folder)
            found |= below
        else:
            found[folder] = FOLDER if format_ is None else f"a folder without a {format_} file"
    for path, kind in matches.items():
        if kind != FOLDER and not (kind == FILE and _is_below(path, opened)):
            found.setdefault(path, kind)
    return found


def _is_below(path: str, folders: set[str]) -> bool:
    """Return whether a path is in one of the folders, or in a folder of theirs."""
    while folders and (path := posixpath.dirname(path)).strip("/"):
        if path in folders:
            return True
    return False


def is_ignored(path: str) -> bool:
    """Return whether Spark passes over a path in the folder; `_column=value` is a folder to it."""
    return any(
        name.startswith(".") or (name.startswith("_") and "=" not in name)
        for name in path.split("/")
    )

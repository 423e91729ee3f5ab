"""Folders that a pattern matches: Spark, Dask and Hive write a table as a folder of files."""

import posixpath
from collections.abc import Callable

from tokflow.raw.globs import Matches

FormatOf = Callable[[str], str | None]
"""The format of a file by its name; None where the name tells none."""


def open_folders(
    matches: Matches,
    *,
    list_below: Callable[[str], Matches],
    format_of: FormatOf,
    are_entered: bool,
) -> Matches:
    """Return `matches` with the files that its folders stand for in place of the folders.

    A folder with a name as of a data file, such as `x.parquet`, stands for all files of that
    format below it. What begins with `_` there (`_SUCCESS`, `_metadata`) is passed over as by
    Spark itself, and so is what is hidden. What `list_below` finds there is all that is read of
    it. Any other folder is one of the `others`, unless the pattern matches in it, too
    (`are_entered`).
    """
    files, others = set[str](), dict(matches.others)
    opened = set[str]()
    for folder in sorted(matches.folders):
        if _is_below(folder, opened):
            continue
        name = posixpath.basename(folder)
        format_ = format_of(name)
        if format_ is None:
            others |= {} if are_entered else {folder: "a folder"}
            continue
        below = list_below(folder)
        shown = {path for path in below.files if not _is_passed_over(path[len(folder) + 1 :])}
        data = {path for path in shown if format_of(posixpath.basename(path)) == format_}
        if not data:
            others[folder] = f"a folder without a {format_} file"
            continue
        opened.add(folder)
        files |= data
        for path, found in below.others.items():
            if not _is_passed_over(path[len(folder) + 1 :]):
                others[path] = found
        others |= dict.fromkeys(shown - data, f"no {format_} file, in the folder {name}")
    files |= {path for path in matches.files if not _is_below(path, opened)}
    return Matches(files=files, others=others)


def _is_below(path: str, folders: set[str]) -> bool:
    """Return whether a path is in one of the folders, or in a folder of theirs."""
    while folders and (path := posixpath.dirname(path)).strip("/"):
        if path in folders:
            return True
    return False


def _is_passed_over(path: str) -> bool:
    """Return whether Spark passes over a path in the folder; `_column=value` is a folder to it."""
    return any(
        name.startswith(".") or (name.startswith("_") and "=" not in name)
        for name in path.split("/")
    )

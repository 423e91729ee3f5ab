"""Patterns for the files, folders and globs that a user names, and names of datasets from them."""

import fnmatch
import os
import re
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from tokflow.errors import ConfigError, first_five
from tokflow.formatting import redact
from tokflow.raw import RawConfig, escaped, list_raw
from tokflow.raw.globs import (
    COMPRESSED_SUFFIXES,
    FILE,
    SUFFIXES,
    find_below,
    format_of_name,
    has_wildcard,
    unescaped,
)
from tokflow.raw.source_splits import is_saved
from tokflow.store.config import expanded
from tokflow.store.urls import hub_url, is_url


def patterns_of(named: Sequence[str], *, here: Path, store: Path) -> tuple[str, ...]:
    """Return absolute patterns for the named raw files, or the URL of a single hub dataset.

    A folder stands for the files below it of one format: the one with the most bytes; one that
    `save_to_disk` wrote stands for itself. Several files, as a shell makes them of a glob, are a
    glob again where one matches just these (`part-*.jsonl`), so that files which come later belong
    to the dataset. No pattern matches what will be in `store`: a folder that holds it stands for
    its other folders, each with a pattern.

    Raises: ConfigError for a URL, a folder without a file of a known format and a glob that would
    match outputs.
    """
    patterns: list[str] = []
    if len(named) == 1 and hub_url(named[0]) is not None:
        return (named[0],)
    for name in named:
        if is_url(name):
            raise ConfigError(
                where=redact(name),
                expected="raw files of this machine, or a dataset of the hub alone, to look at",
                found="a URL",
                remedy="download one of the files, name that, and put the URL into `raw.files` "
                "of what is written",
            )
        path = Path(os.path.normpath(here / expanded(name)))
        if not path.exists():
            escaped_here = Path(escaped(str(here)), expanded(name))
            patterns.append(os.path.normpath(escaped_here))
        elif path.is_dir() and format_of_name(path.name) is None and not is_saved(path):
            patterns += _in_folder(path, store)
        else:
            patterns.append(escaped(str(path)))
    glob = _glob_of([Path(os.path.normpath(here / name)) for name in named], store)
    found = (glob,) if glob is not None else tuple(dict.fromkeys(patterns))
    if inside := [pattern for pattern in found if _is_in(pattern, store)]:
        raise ConfigError(
            where=inside[0],
            expected=f"raw files outside of {store}, where all outputs go",
            found="a path or glob that matches files in it",
            remedy="name the folders of the raw files instead, or move them",
        )
    return found


def shortened_to(base: Path, patterns: Sequence[str]) -> list[str]:
    """Return the patterns relative to `base` where possible."""
    return [pattern.removeprefix(f"{escaped(str(base))}/") for pattern in patterns]


def name_of(patterns: Sequence[str]) -> str:
    """Return a dataset name for the patterns: of the single file, or of the folder."""
    if len(patterns) == 1 and not has_wildcard(patterns[0]):
        name = unescaped(Path(patterns[0]).name)
        return as_name(name.removesuffix(_suffix(name)))
    folders = [
        [*takewhile(lambda part: not has_wildcard(part), Path(pattern).parent.parts)]
        for pattern in patterns
    ]
    return as_name(unescaped(Path(os.path.commonpath([Path(*parts) for parts in folders])).name))


def as_name(text: str) -> str:
    """Return the nearest valid dataset name."""
    text = re.sub(r"[^A-Za-z0-9-]+", "_", text)
    return re.sub(r"[-_]{2,}", "_", text)[:100].strip("-_") or "dataset"


def _is_in(pattern: str, store: Path) -> bool:
    """Return whether a pattern can match files in the store."""
    above, is_deep, _ = pattern.partition("/**")
    parts = Path(above if is_deep else pattern).parts
    is_alike = all(map(fnmatch.fnmatchcase, store.parts, parts))
    # The highest file of a store is <store>/<dataset>/checks.jsonl.
    is_below = bool(is_deep) or len(parts) > len(store.parts) + 1
    return Path(unescaped(pattern)).is_relative_to(store) or (is_alike and is_below)


def _in_folder(folder: Path, store: Path) -> list[str]:
    """Return patterns for the files below a folder of its largest format, outside of `store`."""
    found = find_below(str(folder), ["**"])
    paths = [Path(path) for path, kind in found.items() if kind == FILE]
    paths = [path for path in paths if not path.is_relative_to(store)]
    known = [path for path in paths if format_of_name(path.name) is not None]
    if not known:
        raise ConfigError(
            where=folder,
            expected=f"files with a suffix of {', '.join(SUFFIXES)}, plain or compressed",
            found=first_five(sorted(path.name for path in paths)) or "no file",
            remedy="name another folder, or files with such a suffix",
        )
    num_bytes = Counter[str | None]()
    for path in known:
        num_bytes[format_of_name(path.name)] += path.stat().st_size
    [(largest, _)] = num_bytes.most_common(1)
    return _globs(folder, [of for of in known if format_of_name(of.name) == largest], store)


def _globs(folder: Path, paths: Sequence[Path], store: Path) -> list[str]:
    """Return patterns that match the files below the folder, and none in `store`."""
    direct = [path for path in paths if path.parent == folder]
    is_split = len(direct) < len(paths) and store.is_relative_to(folder)
    below = "" if len(direct) == len(paths) or is_split else "**/"
    suffixes = sorted({_suffix(path.name) for path in (direct if is_split else paths)})
    globs = [f"{escaped(str(folder))}/{below}*{escaped(suffix)}" for suffix in suffixes]
    if is_split:
        deeper = [path for path in paths if path.parent != folder]
        for inner in sorted({folder / path.relative_to(folder).parts[0] for path in deeper}):
            globs += _globs(inner, [path for path in deeper if inner in path.parents], store)
    return globs


def _glob_of(paths: Sequence[Path], store: Path) -> str | None:
    """Return the shortest glob that matches exactly these files, in one folder or sister folders;
    None if there is none, or it could match outputs."""
    suffixes = {_suffix(path.name) for path in paths}
    above = {path.parent.parent for path in paths}
    if len(paths) < 2 or len(above) > 1 or len(suffixes) > 1 or "" in suffixes:
        return None
    if not all(path.is_file() for path in paths):
        return None
    folders, names = {path.parent.name for path in paths}, [path.name for path in paths]
    for prefix in ("", os.path.commonprefix(names).rstrip("0123456789")):  # noqa: RUF071 (of characters)
        folder = escaped(*folders) if len(folders) == 1 else "*"
        glob = os.path.normpath(
            f"{escaped(str(*above))}/{folder}/{escaped(prefix)}*{escaped(*suffixes)}"
        )
        listed = list_raw(RawConfig(files=(glob,)), base=paths[0].parent)
        if {source.url for source in listed.sources.values()} == set(map(str, paths)):
            return None if _is_in(glob, store) else glob
    return None


def _suffix(name: str) -> str:
    """Return the suffix of a file name, such as `.jsonl.gz`, in its own case."""
    stem, suffix = os.path.splitext(name)  # noqa: PTH122 (text, not a path)
    is_compressed = suffix.lower() in COMPRESSED_SUFFIXES
    return os.path.splitext(stem)[1] + suffix if is_compressed else suffix  # noqa: PTH122

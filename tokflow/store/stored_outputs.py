"""Stores and outputs as people name them, by a path or a URL, and a walk over all of a folder.

<store>/<dataset>/<stage>/<fingerprint[:16]>                     one of the dataset: a tokenizer
<store>/<dataset>/<stage>/<partition>/<fingerprint[:16]>         one of a raw file
<store>/<dataset>/exports/<name>/<fingerprint[:16]>, latest      of several names
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokflow.errors import (
    ConfigError,
    CorruptOutputError,
    ForeignOutputError,
    MissingOutputError,
    TokflowError,
    first_five,
)
from tokflow.store.listed_files import LATEST, named_by, resolved
from tokflow.store.manifest import MANIFEST_NAME, holds_output, is_complete, is_output_name
from tokflow.store.store import Store, StoredOutput
from tokflow.store.urls import OF_OBJECT_STORES, check_slashes, is_url


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A folder, or a link, that should be an output and cannot be read as one."""

    folder: Path
    error: TokflowError | OSError


def walk(store: Store, folder: Path) -> Iterator[StoredOutput | Unreadable]:
    """Yield the outputs in a folder of a store and below it, sorted by path.

    An output is a folder called by 16 hexadecimal digits, as no part of a partition key is, that is
    not empty; or one called otherwise that holds a manifest, as an export that was copied out of
    its store. Outputs are not entered, nor are folders whose names begin with a dot, nor links: of
    a link to a folder other than `latest` it is said that it was not. All else is passed by.
    """
    try:
        paths = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        yield Unreadable(folder, error)
        return
    for path in (of for of in paths if not of.name.startswith(".") and of.is_dir()):
        if path.is_symlink():
            if path.name != LATEST:
                refusal = MissingOutputError(
                    where=path,
                    expected="a folder",
                    found=f"a link to {path.readlink()}, which is not followed",
                    remedy="name the folder that it leads to",
                )
                yield Unreadable(path, refusal)
        elif (output := look_at(store, path)) is not None:
            yield output
        else:
            yield from walk(store, path)


def find_output(path: str | Path) -> StoredOutput:
    """Return the output that `path` is, is a file of, leads to, or has as its only one.

    `path`: the folder, a link to it, a file in it, or a folder above it; or the URL of one of them.

    Raises: MissingOutputError where nothing finished is there, CorruptOutputError,
    ForeignOutputError; of a URL as `opened`.
    """
    return output_in(*opened(path, is_alone=True))  # of 100,000 outputs one is wanted


def output_in(store: Store, path: Path) -> StoredOutput:
    """Return the output that a path in a store is, leads to, or has as its only one; as
    `find_output`."""
    if (found := output_at(store, path)) is not None:
        return found
    below = list(walk(store, resolved(path)))
    if len(below) == 1:
        [only] = below
        if isinstance(only, Unreadable):
            raise only.error
        return only
    if below:
        shown = below[0].folder.relative_to(resolved(path))
        found_there = f"a folder of {len(below):,} outputs such as {shown}"
    elif not path.exists():
        store.refresh_dataset(path)
        found_there = _beside(path.absolute())
    else:
        found_there = f"no {MANIFEST_NAME}"
    raise MissingOutputError(
        where=path,
        expected="the folder of an output, such as an export or the tokens of a raw file",
        found=found_there,
        remedy="name one of them, or run `tokflow run` first",
    )


def _beside(path: Path) -> str:
    """Return that a path is not there, and what is: `no 'bn' in /data/exports, which has bin, npy`.

    The first folder above it that is there is named, and not what it hides.
    """
    folder = next(above for above in path.parents if above.exists())
    missing = path.relative_to(folder).parts[0]
    names = [name for name in _names_in(folder) if not name.startswith(".")]
    return f"no {missing!r} in {folder}, which has {first_five(names) or 'nothing'}"


def output_at(store: Store, path: Path) -> StoredOutput | None:
    """Return the output that `path` is, is a file of, or leads to; None where there is none.

    Raises: CorruptOutputError, ForeignOutputError.
    """
    at = resolved(path)
    for folder in (at, resolved(at / LATEST), *list(at.parents)[:3]):
        found = None if folder.name.startswith(".") else look_at(store, folder)
        if isinstance(found, Unreadable):
            raise found.error
        if found is not None:
            return found
    return None


def made_in(store: Store, folder: Path) -> Iterator[StoredOutput]:
    """Yield the finished outputs in `folder`, which holds those of one stage and file, newest
    first; each is read when it is asked for."""
    for each in newest_first(folder, MANIFEST_NAME):
        if isinstance(found := look_at(store, each), StoredOutput):
            yield found


def newest_first(folder: Path, name: str) -> list[Path]:
    """Return the folders in `folder` that have a file `name`, that of the newest first; nothing
    hidden, and no link is followed."""
    folders = [folder / each for each in _names_in(folder) if not each.startswith(".")]
    found = [each for each in folders if (each / name).is_file() and not each.is_symlink()]
    return sorted(found, key=lambda each: (each / name).stat().st_mtime_ns, reverse=True)


def _names_in(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; none where there is no folder."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 (twice as fast where nothing is there)
    except (FileNotFoundError, NotADirectoryError):
        return []


def newest_output(store: Store, folder: Path) -> StoredOutput | None:
    """Return the finished output in `folder` that was made last; None where there is none."""
    return next(made_in(store, folder), None)


def look_at(store: Store, folder: Path) -> StoredOutput | Unreadable | None:
    """Return the output that a folder is; None where it is none."""
    is_named = is_output_name(folder.name) and named_by(folder / LATEST) is None
    try:
        is_output = (holds_output if is_named else is_complete)(folder)
        return store.read(folder) if is_output else None
    except (OSError, CorruptOutputError, ForeignOutputError) as error:
        return Unreadable(folder, error)


def open_store(store: str | Path) -> Store:
    """Return the store in a folder of this disk or at a URL; nothing is asked there.

    Raises: ConfigError for a URL that is refused: one with a user name, password or query, since
    credentials come from the environment, and one that nothing can be written to.
    """
    if isinstance(store, str) and is_url(store):
        from tokflow.store.remote.remote_store import store_at  # late: few stores are at URLs

        return store_at(store)
    return Store(path_of(store))


def opened(path: str | Path, *, is_alone: bool = False) -> tuple[Store, Path]:
    """Return a path and the store that it is in: of a store, a dataset, an output, `latest` of an
    export, or a file of an output. A `Path` is never a URL.

    Of a URL the server is asked where the store begins, and for the manifests of the dataset;
    `is_alone`: only for that of what is named. Files come when they are asked for.

    Raises: MissingOutputError where there is nothing of tokflow at a URL; ConfigError for one that
    is refused, or is a `Path`; RemoteStoreError.
    """
    if isinstance(path, str) and is_url(path):
        from tokflow.store.remote.remote_store import opened_at  # late, as above

        return opened_at(path, is_alone=is_alone)
    path = path_of(path)
    return Store(resolved(path)), path


def reduced_for_machines(path: Path) -> Any:
    """Return what a pickle has of a path that another machine opens: of one in the cache of this
    machine, the path in the cache there."""
    from tokflow.store.remote import cache_folder  # late: few builds are of many machines

    if not path.is_relative_to(cache_folder()):
        return path.__reduce__()
    return _path_in_cache, (str(path.relative_to(cache_folder())),)


def _path_in_cache(path: str) -> Path:
    from tokflow.store.remote import cache_folder

    return Path(cache_folder(), path)


def path_of(path: str | Path) -> Path:
    """Return a path, which must not be a URL without its two slashes, nor one that has something
    before it, which may be of another kind and have a password in it."""
    check_slashes(str(path))
    before, colon, rest = str(path).partition(":/")
    scheme = before.rpartition(":")[2].strip()
    if colon and (scheme in OF_OBJECT_STORES or rest.startswith("/")):
        raise ConfigError(
            where=f"{scheme}://…",
            expected="a path, or a URL",
            found=f"a URL behind {before.rpartition(scheme)[0]!r}",
            remedy="name the URL alone",
        )
    return Path(path)

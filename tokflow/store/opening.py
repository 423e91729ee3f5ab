"""Stores and outputs as people name them: by a path, or by a URL."""

from pathlib import Path
from typing import Any

from tokflow.errors import ConfigError
from tokflow.store.latest import resolved
from tokflow.store.store import Store
from tokflow.store.urls import OF_OBJECT_STORES, check_slashes, is_url


def open_store(store: str | Path) -> Store:
    """Return the store in a folder of this disk or at a URL; nothing is asked there.

    Raises: ConfigError for a URL that is refused: one with a user name, password or query, since
    credentials come from the environment, and one that nothing can be written to.
    """
    if isinstance(store, str) and is_url(store):
        from tokflow.store.remote.object_store import store_at  # late: few stores are at URLs

        return store_at(store)
    return Store(path_of(store))


def opened(path: str | Path, *, is_alone: bool = False) -> tuple[Store, Path]:
    """Return a path and the store that it is in: of a store, a dataset, an output, `latest` of an
    export, or a file of an output. A `Path` is never a URL.

    Of a URL the server is asked where the store begins, and for the manifests of the dataset;
    `is_alone`: for those of what is named, and no others. Files come when they are asked for.

    Raises: MissingOutputError where there is nothing of tokflow at a URL; ConfigError for one that
    is refused, or is a `Path`; RemoteStoreError.
    """
    if isinstance(path, str) and is_url(path):
        from tokflow.store.remote.addresses import opened_at  # late, as above

        return opened_at(path, is_alone=is_alone)
    path = path_of(path)
    return Store(resolved(path)), path


def reduced_for_machines(path: Path) -> Any:
    """Return what a pickle has of a path that another machine opens: of a file of a store at a URL
    the path that it has in the cache there."""
    from tokflow.store.remote.places import place_of  # late: few builds are of many machines

    if (place := place_of(path)) is None:
        return path.__reduce__()
    return _path_here, (place.url, place.is_store, place.key(path))


def _path_here(url: str, is_store: bool, key: str) -> Path:
    from tokflow.store.remote.places import folder_of

    return folder_of(url, is_store=is_store) / key


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

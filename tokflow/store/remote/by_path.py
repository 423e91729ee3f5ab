"""What paths that stand for URLs are asked for, until nobody holds one."""

from collections.abc import Iterable
from pathlib import Path

from tokflow.store.remote import cached_files
from tokflow.store.remote.object_store import ObjectStore
from tokflow.store.remote.places import place_of
from tokflow.store.store import Store


def store_of(path: Path) -> Store:
    """Return the store that a path is in."""
    place = place_of(path)
    return Store(path) if place is None else ObjectStore(place)


def fetched(path: Path) -> Path:
    """Return a path of a file of an output, which is on this disk when this returns."""
    place = place_of(path)
    return path if place is None else cached_files.fetched(place, path)


def fetch_all(paths: Iterable[Path]) -> None:
    """Fetch files, several at once; see `fetched`."""
    at = [(path, place) for path in paths if (place := place_of(path)) is not None]
    if at:
        cached_files.fetch_all(at[0][1], [path for path, _ in at])

"""URLs as people write them, turned once into paths on this disk."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from tokflow.errors import ConfigError, MissingOutputError
from tokflow.store.latest import LATEST
from tokflow.store.manifest import EARLIER_NAME, MANIFEST_NAME, is_output_name
from tokflow.store.remote.cache_limit import limit_of
from tokflow.store.remote.keys import MANIFESTS, STAGES, is_dataset_name
from tokflow.store.remote.mirror import refresh
from tokflow.store.remote.objects import Objects, RemoteStoreError
from tokflow.store.remote.places import checked_url, folder_of, place_of
from tokflow.store.remote.requests import for_each
from tokflow.store.urls import OF_OBJECT_STORES, check_slashes, is_url

DEEPEST_FILE = 4
"""A file of an output is at most so deep in it, itself counted."""


def store_folder(store: str | Path) -> Path:
    """Return the folder of a store, which may be at a URL; nothing is asked there.

    Raises: ConfigError for a URL that is refused; see `folder_of`.
    """
    return _folder_of(store) if isinstance(store, str) and is_url(store) else _of_disk(store)


def local_path(path: str | Path, *, is_alone: bool = False) -> Path:
    """Return a path, or the one on this disk that stands for a URL: of a store, a dataset, an
    output, `latest` of an export, or a file of an output. A `Path` is never a URL.

    The server is asked where the store begins, and for the manifests of the dataset; `is_alone`:
    for those of what is named, and no others. Files come when they are opened.

    Raises: MissingOutputError where there is nothing of tokflow; ConfigError for a URL that is
    refused, or is a `Path`; RemoteStoreError.
    """
    if isinstance(path, Path) or not is_url(path):
        return _of_disk(path)
    url = checked_url(path)
    at = _nearest(url)
    if at is None:
        raise _nothing_at(url)
    root, dataset = at
    folder = _folder_of(root, is_store=dataset is not None)
    named = folder / url[len(root) :].lstrip("/")
    refresh(_alone(named, folder) if is_alone and dataset else folder / (dataset or ""))
    return named


def _nothing_at(url: str) -> MissingOutputError:
    found = f"neither {MANIFESTS}/ nor a {MANIFEST_NAME} of tokflow, there or above it"
    remedy = "correct the URL, or run `tokflow run` first"
    if b'"format_version"' in (Objects(url).read(EARLIER_NAME) or b""):
        found, remedy = f"a {EARLIER_NAME} of an earlier tokflow", "remove it, and make it again"
    return MissingOutputError(
        where=url,
        expected="a store, a dataset, an output or a file of one, made by tokflow",
        found=found,
        remedy=remedy,
    )


def _folder_of(url: str, *, is_store: bool = True) -> Path:
    """Return the folder that stands for a URL, and refuse a limit of all of them that is none."""
    folder = folder_of(url, is_store=is_store)
    limit_of(folder.parent)
    return folder


def refresh_dataset(path: Path) -> None:
    """Let all manifests of the dataset that a path is in be those of its URL, so that what is not
    there can be told from what is; nothing is done for a path of this disk alone."""
    place = place_of(path)
    if place is not None:
        refresh(place.root / place.key(path).partition("/")[0])


def _alone(path: Path, root: Path) -> Path:
    """Return the folder of the output that a path is, or is in, or else the one it is."""
    for above in (path, *path.parents[: len(path.relative_to(root).parts)]):
        if is_output_name(above.name):
            return above
    return path.parent if path.name == LATEST else path


def _of_disk(path: str | Path) -> Path:
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


_At: TypeAlias = tuple[str, str | None]
"""The URL where a place begins, and the name of a dataset: None of one output, empty of a store."""


def _nearest(url: str) -> _At | None:
    """Return the place that a URL is in, the nearest of several.

    All URLs above it are looked at together. A refusal counts only where nothing is found, since
    credentials may be for one store in a bucket.
    """
    found = for_each(lambda above: _look_at(*above), _above(url))
    if places := [of for of in found if isinstance(of, tuple)]:
        return places[0]
    if _is_store(url):
        return url, ""
    if refused := [of for of in found if isinstance(of, RemoteStoreError)]:
        raise refused[0]
    return None


def _above(url: str) -> Iterator[tuple[str, int]]:
    """Yield a URL and those above it, down to the bucket, and how many steps they are away."""
    scheme, _, rest = url.partition("://")
    parts = rest.split("/")
    for num_steps in range(len(parts)):
        if above := "/".join(parts[: len(parts) - num_steps]):
            yield f"{scheme}://{above}", num_steps


def _look_at(url: str, num_steps: int) -> _At | RemoteStoreError | None:
    """Return the place if a dataset or one output begins at this URL, or why that is not known."""
    objects = Objects(url)
    try:
        if _is_dataset(objects):
            store, _, name = url.rpartition("/")
            return store, name
        if num_steps < DEEPEST_FILE and b'"fingerprint"' in (objects.read(MANIFEST_NAME) or b""):
            return url, None
    except RemoteStoreError as error:
        return error
    return None


def _is_dataset(objects: Objects) -> bool:
    names = {*objects.names(MANIFESTS)}  # those of a dataset that is called so have it, too
    return MANIFESTS not in names and not STAGES.isdisjoint(names)


def _is_store(url: str) -> bool:
    """Return whether there is a dataset right below a URL."""
    names = filter(is_dataset_name, Objects(url).names(""))
    return any(for_each(lambda name: _is_dataset(Objects(f"{url}/{name}")), names))

"""Where a store or an output begins at a URL that somebody names."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from tokflow.errors import MissingOutputError
from tokflow.store.latest import LATEST
from tokflow.store.manifest import EARLIER_NAME, MANIFEST_NAME, is_output_name
from tokflow.store.remote.keys import MANIFESTS, STAGES, is_dataset_name
from tokflow.store.remote.object_store import ObjectStore, store_at
from tokflow.store.remote.objects import Objects, RemoteStoreError
from tokflow.store.remote.places import checked_url
from tokflow.store.remote.requests import for_each

DEEPEST_FILE = 4
"""A file of an output is at most so deep in it, itself counted."""


def opened_at(url: str, *, is_alone: bool) -> tuple[ObjectStore, Path]:
    """Return the store that a URL is in, and the path on this disk that stands for it; see
    `opened`."""
    url = checked_url(url)
    at = _nearest(url)
    if at is None:
        raise _nothing_at(url)
    root, dataset = at
    store = store_at(root, is_store=dataset is not None)
    folder = store.root
    named = folder / url[len(root) :].lstrip("/")
    store.refresh(_alone(named, folder) if is_alone and dataset else folder / (dataset or ""))
    return store, named


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


def _alone(path: Path, root: Path) -> Path:
    """Return the folder of the output that a path is, or is in, or else the one it is."""
    for above in (path, *path.parents[: len(path.relative_to(root).parts)]):
        if is_output_name(above.name):
            return above
    return path.parent if path.name == LATEST else path


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

"""A store at a URL, through the folder on this disk that stands for it."""

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, BinaryIO, cast

import numpy.typing as npt

from tokflow.errors import CorruptOutputError, ForeignOutputError, MissingOutputError, TokflowError
from tokflow.store import atomic, remote
from tokflow.store.integrity import Stored
from tokflow.store.listed_files import LATEST, named_by
from tokflow.store.manifest import (
    MANIFEST_NAME,
    VERDICTS_NAME,
    Manifest,
    Recipe,
    is_complete,
    is_output_name,
    read_run,
    without_files,
)
from tokflow.store.remote import cache, cached_files, publication
from tokflow.store.remote.objects import Objects, for_each
from tokflow.store.requests import RemoteStoreError
from tokflow.store.store import Store, StoredOutput

WORTH_A_LISTING = 20
"""Outputs looked for from which on their dataset is listed; fewer are asked for one by one."""


def store_at(url: str) -> "RemoteStore":
    """Return the store at a URL; nothing is asked there.

    Raises: ConfigError for a URL that is refused, and for a limit of the cache that is none.
    """
    place = remote.place_at(url)
    cache.limit_of(Path(remote.cache_folder()))
    return RemoteStore(place.root, place)


@dataclass(frozen=True, eq=False, repr=False)
class RemoteStore(Store):
    """Outputs at a URL. Their manifests are on this disk as `refresh` found them; their files come
    when they are asked for, and go when the cache is full."""

    place: remote.Place

    is_cached = True
    checked_at_once = 64
    sample_bytes = 2**26

    def __reduce__(self) -> Any:
        return store_at, (self.place.url,)

    @property
    def most_bytes(self) -> int:
        return cache.limit_of(Path(remote.cache_folder()))

    def at(self, base: Path) -> Store:
        return self

    def shown(self, path: Path) -> str:
        return self.place.url_of(path) if self._has(path) else str(path)

    def uri(self, path: Path) -> str:
        return self.shown(path)

    def read(self, folder: Path) -> StoredOutput:
        return self._unless_known_better(folder, partial(super().read, folder))

    def find(
        self, folder: Path, stage: str, fingerprint: str, recipe: Recipe | None = None
    ) -> StoredOutput:
        find = partial(super().find, folder, stage, fingerprint, recipe)
        return self._unless_known_better(folder, find)

    def _unless_known_better(self, folder: Path, find: Callable[[], StoredOutput]) -> StoredOutput:
        """Return what `find` returns; where the manifest cannot be read, a copy on this disk tells
        nothing of what is there."""
        try:
            return find()
        except (CorruptOutputError, ForeignOutputError):
            cache.refresh_output(self.place, folder)
            return find()

    def check(self, output: Stored) -> None:
        for name, entry in output.manifest.files.items():
            path = output.folder / name
            with suppress(FileNotFoundError):
                if path.stat().st_size != entry.num_bytes:
                    self.forget(path)  # another comes when it is opened

    def is_known_damaged(self, folder: Path) -> bool:
        return cache.is_known_damaged(folder)

    def _has(self, folder: Path) -> bool:
        """Return whether a folder is one of the store's."""
        return folder == self.root or self.root in folder.parents

    def refresh(self, folder: Path) -> None:
        if self._has(folder):
            cache.refresh(self.place, folder)

    def refresh_dataset(self, path: Path) -> None:
        self.refresh(self.root / self.place.key(path).partition("/")[0])

    def refresh_outputs(self, folders: Iterable[Path]) -> None:
        for_each(partial(cache.refresh_output, self.place), folders)

    def look_for(self, folders: Iterable[Path], *, below: Path | None = None) -> None:
        away = [of for of in folders if self._has(of) and not is_complete(of)]
        if below is not None and len(away) >= WORTH_A_LISTING:
            self.refresh(below)
            return
        with suppress(RemoteStoreError):
            for_each(partial(cache.refresh_output, self.place), away)

    def problems(self, outputs: Sequence[StoredOutput]) -> list[list[TokflowError]]:
        return publication.broken_there(self.place, outputs)

    def unlisted(self, output: StoredOutput) -> list[str]:
        return []  # nobody lists an output at a URL to read it

    def marks(self, folder: Path, manifest: Manifest) -> object:
        return manifest.files  # what comes from there is compared with it

    def note_damage(self, folder: Path) -> None:
        cache.note_damage(folder)

    def note_lacking(self, folders: Iterable[Path]) -> int:
        return publication.note_lacking(self.place, folders)

    def watched(self, folder: str, *, is_deep: bool) -> Iterator[str]:
        yield f"{folder}/{MANIFEST_NAME}"  # all else comes and goes on this disk as it is read

    def file(self, output: Stored, name: str) -> Path:
        return cached_files.fetched(self.place, output, name)

    def bring(self, files: Iterable[tuple[Stored, str]]) -> None:
        files = [*files]
        away = [of for of in files if not (of[0].folder / of[1]).exists()]
        for folder in {output.folder for output, _ in files}:
            cache.note_use(folder)
        for_each(lambda of: cached_files.fetched(self.place, *of), away)

    @contextmanager
    def fetching(self, outputs: Iterable[Stored], *, has_numbers: bool) -> Iterator[None]:
        files = [(of, name) for of in outputs for name in of.manifest.files]
        self.bring(of for of in files if not of[1].endswith(".bin"))
        has_ended = Event()

        def fetch() -> None:
            for of in files:
                if of[1].endswith(".bin") and not has_ended.is_set():
                    with suppress(TokflowError, OSError):  # of which whoever reads it tells
                        self.bring([of])

        if has_numbers:
            Thread(target=fetch, daemon=True).start()
        try:
            yield
        finally:
            has_ended.set()

    def is_far(self, output: Stored, name: str) -> bool:
        entry = output.manifest.files.get(name)
        is_large = entry is not None and entry.num_bytes > cached_files.SMALL_BYTES
        return is_large and not (output.folder / name).exists()

    def open_lazily(self, output: Stored, name: str) -> BinaryIO:
        if self.is_far(output, name):
            ranges = cached_files.Ranges(self.place, output, name)
            return cast(BinaryIO, io.BufferedReader(ranges, cached_files.READ_AHEAD))
        return self.file(output, name).open("rb")

    def far_numbers(self, output: Stored, name: str, *of: Any) -> npt.NDArray[Any] | None:
        if not self.is_far(output, name):
            return None
        return cast(npt.NDArray[Any], cached_files.LazyNumbers(self.place, output, name, *of))

    def link(self, output: Stored, name: str, new: Path) -> None:
        if (output.folder / name).exists():  # else the server copies it when the output is put
            super().link(output, name, new)

    def forget(self, path: Path) -> bool:
        path.unlink(missing_ok=True)
        return True

    def run(self, folder: Path) -> dict[str, Any]:
        cached_files.fetch_run(self.place, folder)
        return read_run(folder)

    def fetch_runs(self, folders: Iterable[Path]) -> None:
        for_each(partial(cached_files.fetch_run, self.place), folders)

    def put(self, temporary: Path, folder: Path) -> None:
        publication.publish(self.place, temporary, folder)

    def link_equal(self, temporary: Path, folder: Path) -> None:
        pass  # the server has copied what is equal; files here come and go

    def point_latest(self, folder: Path) -> None:
        latest = folder.parent / LATEST
        if named_by(latest) != folder.resolve():
            self.place.objects.put(self.place.mirror_key(latest), folder.name.encode())
        super().point_latest(folder)

    def segments(self, folder: Path, *, stay_here: bool) -> tuple[Store, Path]:
        if stay_here:
            return Store(self.root), atomic.folder_of_segments_here(folder)
        return super().segments(folder, stay_here=False)

    @contextmanager
    def in_use(self, folder: Path) -> Iterator[Path]:
        with atomic.in_use(folder) as mark:
            self.place.objects.put(self.place.key(mark), b"")
            try:
                yield mark
            finally:
                with suppress(TokflowError):  # garbage a day later
                    self.place.objects.remove([self.place.key(mark)])

    def remove_segments(self, folder: Path, *, stayed_here: bool) -> None:
        objects, segments = self.place.objects, atomic.segments_folder(folder)
        if not stayed_here or segments.exists():
            with suppress(TokflowError):
                for prefix in (self.place.mirror_key(segments), self.place.key(segments)):
                    objects.remove([entry.key for entry in objects.listed(prefix)])
        super().remove_segments(folder, stayed_here=stayed_here)

    def read_beside(self, folder: Path, name: str) -> bytes | None:
        key = cached_files.key_of(self.place, folder, folder / name)
        return self.place.objects.read(key)

    def write_beside(self, path: Path, content: bytes) -> None:
        is_verdict = path.parent.name == VERDICTS_NAME
        key = self.place.mirror_key(path) if is_verdict else self.place.key(path)
        if (folder := self.place.output_folder(path)) is not None:
            key = cached_files.key_of(self.place, folder, path)
        self.place.objects.put(key, content)
        super().write_beside(path, content)

    def unfinished(self, folder: Path, *, seconds: float) -> dict[Path, int]:
        here = atomic.unfinished_here(folder, seconds=seconds, with_segments=False)
        return here | publication.find_unfinished(self.place, folder, seconds=seconds)

    def freed_bytes(self, folders: Iterable[Path], unfinished: dict[Path, int]) -> dict[Path, int]:
        folders, sizes = [*folders], dict[Path, int]()
        for folder in folders:
            with suppress(TokflowError):
                sizes[folder] = self.read(folder).manifest.num_bytes
        unread = super().freed_bytes([of for of in folders if of not in sizes], {})
        return {of: (sizes | unread)[of] for of in folders} | unfinished

    def drop(self, output: StoredOutput, names: Collection[str]) -> None:
        publication.drop_there(self.place, output, without_files(output.manifest, names))
        super().drop(output, names)

    def remove_all(self, folders: Iterable[Path], *, seconds: float) -> None:
        for_each(partial(self._remove, seconds=seconds), folders)

    def _remove(self, folder: Path, *, seconds: float) -> None:
        is_here_alone = folder.name.startswith(".") and not atomic.is_segments_folder(folder)
        if not is_here_alone and not is_complete(folder):
            publication.remove_unfinished(self.place, folder, seconds=seconds)
            return
        if not is_here_alone:
            publication.remove_published(self.place, folder)
        atomic.remove_output(folder, seconds=seconds)


def opened_at(url: str, *, is_alone: bool) -> tuple[RemoteStore, Path]:
    """Return the store that a URL is in, and the path on this disk that stands for it; see
    `opened`."""
    url = remote.checked_url(url)
    root, dataset = _nearest(url)
    store = store_at(root)
    named = store.root / url[len(root) :].lstrip("/")
    looked_at = store.root / dataset
    if is_alone and dataset:  # the output that it is, or is in, or else the folder it is
        above = (named, *named.parents[: len(named.relative_to(store.root).parts)])
        folder = named.parent if named.name == LATEST else named
        looked_at = next((of for of in above if is_output_name(of.name)), folder)
    store.refresh(looked_at)
    return store, named


def _nearest(url: str) -> tuple[str, str]:
    """Return the URL of the store that a URL is in, and the name of its dataset there, empty of the
    store itself.

    All URLs above it are looked at together. A refusal counts only where nothing is found, since
    credentials may be for one store in a bucket.
    """
    scheme, _, rest = url.partition("://")
    parts = rest.split("/")
    above = ("/".join(parts[:num]) for num in range(len(parts), 0, -1))
    urls = [f"{scheme}://{each}" for each in above if each]
    refused: list[RemoteStoreError] = []

    def is_dataset(url: str) -> bool:
        try:
            return _is_dataset(remote.objects_at(url))
        except RemoteStoreError as error:
            refused.append(error)
            return False

    for each, is_found in zip(urls, for_each(is_dataset, urls), strict=True):
        if is_found:
            store, _, name = each.rpartition("/")
            return store, name
    datasets = filter(remote.is_dataset_name, remote.objects_at(url).names(""))  # right below it
    if any(for_each(lambda name: _is_dataset(remote.objects_at(f"{url}/{name}")), datasets)):
        return url, ""
    raise next(
        iter(refused),
        MissingOutputError(
            where=url,
            expected="a store, a dataset, an output or a file of one, made by tokflow",
            found=f"no {remote.MANIFESTS}/ of tokflow, there or above it",
            remedy="correct the URL, or run `tokflow run` first",
        ),
    )


def _is_dataset(objects: Objects) -> bool:
    """Return whether there is a manifest where a dataset keeps those of its outputs; the first
    one ends the listing of a stage."""
    names = objects.names(remote.MANIFESTS)
    if remote.MANIFESTS in names:  # a dataset of that name in a store
        return False
    listed = (entry for name in names for entry in objects.listed(f"{remote.MANIFESTS}/{name}"))
    keys = (entry.key.removeprefix(f"{remote.MANIFESTS}/") for entry in listed)
    return any(map(remote.is_mirrored, keys))

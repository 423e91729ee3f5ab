"""The manifests at a URL, mirrored on this disk, with links `latest` and verdicts, and marks of
outputs of which a file cannot be had.

One listing tells which of them have come, changed or gone: the mirror of an object has its size
and its time, which no other content of its key has. Those that have come are asked for one by one,
or many at once from packs, which hold many manifests in one object and spare requests:

    <dataset>/packs/<first>-<last>-<digest[:8]>.zst     a list of (key, modified_ns, bytes)

The times are those of the first and the last object in it, in nanoseconds, as listings tell them.
A manifest that is in no pack, or has changed since, is asked for by itself.
"""

import hashlib
import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from tokflow.store.atomic import remove, remove_empty
from tokflow.store.latest import LATEST, make_latest
from tokflow.store.manifest import (
    MANIFEST_NAME,
    OWN_FOLDER,
    VERDICTS_NAME,
    folder_of_manifest,
    has_its_digest,
    is_output_name,
)
from tokflow.store.remote.objects import Entry, for_each
from tokflow.store.remote.places import PACKS, Place, is_dataset_name
from tokflow.store.request_errors import RemoteStoreError
from tokflow.store.unfinished import is_segments_folder
from tokflow.store.zstd import zstd

_Seen: TypeAlias = tuple[int, int]
"""Size and time of modification of something on this disk."""

DAMAGE_NAME = f"{OWN_FOLDER}/.damaged"
"""Beside the manifest of an output of which a file cannot be had: a run makes it again."""

LARGE = 5_000
"""Outputs of a dataset of which the listing takes several requests, which are made at the same
time."""


def refresh(place: Place, folder: Path) -> None:
    """Let the manifests on this disk be those of the URL: of the output in `folder`, or of all
    below the folder of a store, a dataset, a stage or an export.

    It takes a request for each thousand outputs,
    and one for each that has come or changed since the last time, or for many from packs.
    """
    if not place.is_store or is_output_name(folder.name):
        refresh_output(place, folder if place.is_store else place.root)
        return
    is_root = folder == place.root
    found = filter(is_dataset_name, place.objects.names("")) if is_root else [place.key(folder)]
    names = [name for name in found if not name.startswith(".")]
    try:
        _refresh_below(place, place.root / VERDICTS_NAME)
    except RemoteStoreError as error:  # of the first request, which says what is wrong with all
        raise RemoteStoreError(**{**error.fields(), "where": place.url}) from None
    for name in names:
        _refresh_below(place, place.root / name)


def refresh_output(place: Place, folder: Path) -> None:
    """Let the manifest of one output on this disk be that of its URL; if that is another, the files
    of this one go."""
    data = _read(place, place.manifest_key(folder))
    if data is not None:
        _keep(f"{folder}/{MANIFEST_NAME}", data)
    else:
        _forget(folder / MANIFEST_NAME, place)


def has_come_again(place: Place, folder: Path) -> bool:
    """Return whether the manifest in a folder, which cannot be read, was another at the URL that
    the folder stands for, and is that one now: a copy on this disk tells nothing of what is there.
    """
    is_output = is_output_name(folder.name) or is_segments_folder(folder.parent)
    if not (is_output if place.is_store else folder == place.root):
        return False
    with suppress(FileNotFoundError):
        before = (folder / MANIFEST_NAME).read_bytes()
        refresh_output(place, folder)
        return (folder / MANIFEST_NAME).read_bytes() != before
    return False


def _refresh_below(place: Place, folder: Path) -> None:
    """Bring what is mirrored in a folder and below it up to date.

    What is here is looked at before the listing: what another process of this machine publishes
    meanwhile is in the listing then, or was not looked at, and is never taken for removed.
    """
    gone = dict(_mirrored(str(folder)))
    is_dataset = folder.parent == place.root and folder.name != VERDICTS_NAME
    is_large = is_dataset and (not gone or len(gone) > LARGE)
    new: dict[str, Entry] = {}
    paths: dict[str, str] = {}
    for entry in _listed(place, folder, is_large=is_large):
        path = place.mirror_path(entry.key)
        if path is not None and not _is_known(path, entry, gone.pop(path, None)):
            new[entry.key], paths[entry.key] = entry, path
    for path in gone:
        _forget(Path(path), place)
    if len(new) >= WORTH_A_PACK:
        packs = packs_of(place, place.key(folder).partition("/")[0])
        for key, modified_ns, data in unpacked(place, packs, new):
            _keep(paths[key], data, modified_ns)
            del new[key]

    def fetch(entry: Entry) -> None:
        if (data := _read(place, entry.key)) is not None:
            _keep(paths[entry.key], data, entry.modified_ns)

    for_each(fetch, new.values())


def _listed(place: Place, folder: Path, *, is_large: bool) -> Iterator[Entry]:
    """Yield the objects of what is mirrored in a folder; those of the folders in a large one are
    listed at the same time."""
    key = place.mirror_key(folder)
    names = place.objects.names(key) if is_large else []
    if len(names) < 2:
        yield from place.objects.listed(key)
        return
    for entries in for_each(lambda name: list(place.objects.listed(f"{key}/{name}")), names):
        yield from entries


def pack_manifests(place: Place, folder: Path) -> None:
    """Put the manifests of a dataset into packs where many are in none, so that a machine that has
    nothing of it gets them by few requests.

    Nothing depends on packs: one that may not be written is left out.
    """
    dataset = place.key(folder)
    last_ns = max((pack.last_ns for pack in packs_of(place, dataset)), default=0)
    if sum(time_ns > last_ns for time_ns, _ in _manifests(folder)) < MANY:
        return
    refresh(place, folder)  # for the times of what was made here
    settled_ns = time.time_ns() - SETTLED_NS
    new = sorted(each for each in _manifests(folder) if last_ns < each[0] <= settled_ns)
    for start in range(0, len(new) if len(new) >= MANY else 0, LARGEST):
        some = new[start : start + LARGEST]
        entries = [
            (place.manifest_key(folder_of_manifest(Path(path))), time_ns, _content(path))
            for time_ns, path in some
        ]
        data = zstd.compress(msgspec.msgpack.encode(entries), 3)
        name = f"{some[0][0]}-{some[-1][0]}-{hashlib.sha256(data).hexdigest()[:8]}.zst"
        with suppress(RemoteStoreError):
            place.objects.put(f"{dataset}/{PACKS}/{name}", data)


def _manifests(folder: Path) -> Iterator[tuple[int, str]]:
    """Yield the time and the path of each manifest below a folder."""
    found = _mirrored(str(folder))
    return ((time_ns, path) for path, (_, time_ns) in found if path.endswith(MANIFEST_NAME))


def _read(place: Place, key: str) -> bytes | None:
    """Return the bytes of a manifest, a link or a verdict at the URL; of a manifest that may have
    been damaged on its way those that come when it is asked for again."""
    data = place.objects.read(key)
    if data is not None and key.endswith(".json") and not has_its_digest(data):
        return place.objects.read(key)
    return data


def _seen(status: os.stat_result) -> _Seen:
    return status.st_size, status.st_mtime_ns


def _mirrored(folder: str) -> Iterator[tuple[str, _Seen]]:
    """Yield what is mirrored in a folder and below it; nothing that is not finished."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    in_segments = is_segments_folder(Path(folder))
    in_verdicts = folder.endswith(f"/{VERDICTS_NAME}")
    for entry in entries:
        is_hidden = entry.name.startswith(".") and entry.name != VERDICTS_NAME
        if is_hidden and not is_segments_folder(Path(entry.path)):
            continue  # not finished, or of this machine alone
        if in_segments or is_output_name(entry.name):
            with suppress(FileNotFoundError, NotADirectoryError):
                path = f"{entry.path}/{MANIFEST_NAME}"
                yield path, _seen(os.stat(path))  # noqa: PTH116 (of many: a Path costs as much)
        elif entry.is_symlink() or in_verdicts or (entry.name == LATEST and entry.is_file()):
            yield entry.path, _seen(entry.stat(follow_symlinks=False))
        elif entry.is_dir():
            yield from _mirrored(entry.path)


def _is_known(path: str, entry: Entry, here: _Seen | None) -> bool:
    """Return whether what is on this disk has the size and the time of its object; or, since it was
    made here, its content: then it takes that time."""
    if here is None or here[0] != entry.num_bytes:
        return False
    if here[1] == entry.modified_ns:
        return True
    with suppress(FileNotFoundError):
        if hashlib.md5(_content(path), usedforsecurity=False).hexdigest() == entry.etag:
            _take_time(path, entry.modified_ns)
            return True
    return False


def _content(path: str) -> bytes:
    if os.path.islink(path):  # noqa: PTH114 (of many, as above)
        return os.readlink(path).encode()  # noqa: PTH115
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read()


def _set_time(path: str, modified_ns: int) -> None:
    os.utime(path, ns=(modified_ns, modified_ns), follow_symlinks=False)


def _take_time(path: str, modified_ns: int) -> None:
    """Let what has the content of its object have its time. It was put there then, maybe again:
    forget that a file of the output could not be fetched before."""
    _set_time(path, modified_ns)
    mark = folder_of_manifest(Path(path)) / DAMAGE_NAME
    with suppress(FileNotFoundError):
        if mark.stat().st_mtime_ns < modified_ns:
            mark.unlink()


def _keep(path: str, data: bytes, modified_ns: int | None = None) -> None:
    """Let `path` have the bytes of its object, and its time where that is known; files of an output
    whose manifest was another go. A link that would lead anywhere but to an output beside it goes.

    Done for each of 100,000 manifests: strings in place of paths halve the time.
    """
    folder, _, name = path.rpartition("/")
    if name == LATEST and not is_output_name(data.decode(errors="replace")):
        Path(path).unlink(missing_ok=True)
        return
    try:
        if _content(path) == data:
            if modified_ns is not None:
                _take_time(path, modified_ns)
            return
        if path.endswith(f"/{MANIFEST_NAME}"):
            _drop_files(Path(path))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        pass
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    temporary = f"{folder}/.{name}.{os.getpid()}-{threading.get_ident()}.tmp"
    if name == LATEST:
        make_latest(Path(temporary), data.decode())
        if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114
            remove(Path(path))  # a copy that was made of what the link led to
    else:
        with open(temporary, "wb") as file:  # noqa: PTH123 (buffered: all of it, or an error)
            file.write(data)
    if modified_ns is not None:
        _set_time(temporary, modified_ns)
    os.replace(temporary, path)  # noqa: PTH105


def _forget(path: Path, place: Place) -> None:
    """Remove what has no object any more, and the files of an output with it."""
    if path.match(MANIFEST_NAME):
        _drop_files(path)
        if place.is_store:
            remove_empty(path.parents[1:])
    else:
        path.unlink(missing_ok=True)


def _drop_files(manifest: Path) -> None:
    """Remove an output from this disk, its manifest first."""
    manifest.unlink(missing_ok=True)
    with suppress(FileNotFoundError):  # another process has just removed it
        for path in [*folder_of_manifest(manifest).iterdir()]:
            remove(path)


def note_damage(folder: Path) -> None:
    """Remember that a file of the output in a folder cannot be fetched."""
    (folder / DAMAGE_NAME).touch()


def is_known_damaged(folder: Path) -> bool:
    """Return whether a file of the output in a folder could not be fetched, and the output was not
    made again since."""
    return (folder / DAMAGE_NAME).exists()


MANY = 1_000
"""Number of manifests in no pack from which on they are put into one."""

LARGEST = 10_000
"""Manifests of one pack: 20 MB, and 3 MB as it is stored."""

WORTH_A_PACK = 20
"""Manifests wanted of a pack from which on it is read; fewer are asked for one by one."""

SETTLED_NS = 2 * 10**9
"""Younger objects wait for the next pack: one that is older may not have been listed yet."""


@dataclass(frozen=True, slots=True)
class Pack:
    """One pack, as a listing tells of it."""

    key: str
    first_ns: int
    last_ns: int


Packed = tuple[str, int, bytes]
"""Key, time and bytes of a manifest."""


def packs_of(place: Place, dataset: str) -> list[Pack]:
    """Return the packs of a dataset, in the order of their first objects: one request."""
    packs = []
    for entry in place.objects.listed(f"{dataset}/{PACKS}"):
        with suppress(ValueError):
            first, last, _ = entry.key.rpartition("/")[2].split("-")
            packs.append(Pack(entry.key, int(first), int(last)))
    return packs


def unpacked(place: Place, packs: Iterable[Pack], wanted: Mapping[str, Entry]) -> Iterator[Packed]:
    """Yield the manifests among those wanted, by their keys, that are in packs as they are now."""
    times = sorted(entry.modified_ns for entry in wanted.values())
    read = [pack for pack in packs if _num_between(times, pack) >= WORTH_A_PACK]
    for data in for_each(lambda pack: place.objects.read(pack.key), read):
        for key, modified_ns, manifest in _entries(data):
            entry = wanted.get(key)
            is_now = entry is not None and entry.modified_ns == modified_ns
            if is_now and has_its_digest(manifest):
                yield key, modified_ns, manifest


def unread(packs: Iterable[Pack], times: list[int]) -> Iterator[Pack]:
    """Yield the packs that nobody will read, since too few manifests that are there now have times
    between theirs; `times`, sorted, are those of all."""
    return (pack for pack in packs if _num_between(times, pack) < WORTH_A_PACK)


def _num_between(times: list[int], pack: Pack) -> int:
    return bisect_right(times, pack.last_ns) - bisect_left(times, pack.first_ns)


def _entries(data: bytes | None) -> list[Packed]:
    """Return what is in a pack; nothing where it is damaged."""
    try:
        return msgspec.msgpack.decode(zstd.decompress(data or b""), type=list[Packed])
    except (zstd.ZstdError, msgspec.MsgspecError, EOFError):
        return []

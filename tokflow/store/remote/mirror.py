"""The manifests at a URL, mirrored on this disk, with links `latest` and verdicts, and marks of
outputs of which a file cannot be had.

One listing tells which of them have come, changed or gone: the mirror of an object has its size
and its time, which no other content of its key has. Those that have come are asked for, many at the
same time.
"""

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from tokflow.store.atomic import is_segments_folder, remove, remove_empty
from tokflow.store.links import LATEST, make_latest
from tokflow.store.manifest import (
    MANIFEST_NAME,
    OWN_FOLDER,
    VERDICTS_NAME,
    folder_of_manifest,
    has_its_digest,
    is_output_name,
)
from tokflow.store.remote.objects import Entry, for_each
from tokflow.store.remote.places import Place, is_dataset_name
from tokflow.store.request_errors import RemoteStoreError

_Seen: TypeAlias = tuple[int, int]
"""Size and time of modification of something on this disk."""

DAMAGE_NAME = f"{OWN_FOLDER}/.damaged"
"""Beside the manifest of an output of which a file cannot be had: a run makes it again."""


def refresh(place: Place, folder: Path) -> None:
    """Let the manifests on this disk be those of the URL: of the output in `folder`, or of all
    below the folder of a store, a dataset, a stage or an export.

    It takes a request for each thousand outputs, and one for each that has come or changed since
    the last time.
    """
    if is_output_name(folder.name):
        refresh_output(place, folder)
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
        _forget(folder / MANIFEST_NAME)


def _refresh_below(place: Place, folder: Path) -> None:
    """Bring what is mirrored in a folder and below it up to date.

    What is here is looked at before the listing: what another process of this machine publishes
    meanwhile is in the listing then, or was not looked at, and is never taken for removed.
    """
    gone = dict(_mirrored(str(folder)))
    new: dict[str, Entry] = {}
    for entry in place.objects.listed(place.mirror_key(folder)):
        path = place.mirror_path(entry.key)
        if path is not None and not _is_known(path, entry, gone.pop(path, None)):
            new[path] = entry
    for path in gone:
        _forget(Path(path))

    def fetch(path: str) -> None:
        if (data := _read(place, new[path].key)) is not None:
            _keep(path, data, new[path].modified_ns)

    for_each(fetch, new)


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
    else:
        with open(temporary, "wb") as file:  # noqa: PTH123 (buffered: all of it, or an error)
            file.write(data)
    if modified_ns is not None:
        _set_time(temporary, modified_ns)
    os.replace(temporary, path)  # noqa: PTH105


def _forget(path: Path) -> None:
    """Remove what has no object any more, and the files of an output with it."""
    if path.match(MANIFEST_NAME):
        _drop_files(path)
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

"""The folder on this disk that stands for a URL: the manifests there, mirrored with links `latest`
and verdicts, marks of outputs of which a file cannot be had, and the limit of what it takes.

One listing tells which manifests have come, changed or gone: the mirror of an object has its size
and its time, which no other content of its key has. Those that have come are asked for, many at the
same time.

Files of the outputs that were used longest ago go, and come again when they are opened. Manifests
stay, and small outputs that a dataset has one of, such as a tokenizer; so does what is not finished
or was used a short time ago. A file that is open can be read on. Where that is not enough, of
exports that are used those files go that came first.
"""

import fcntl
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tokflow.errors import ConfigError, TokflowError
from tokflow.store.atomic import is_segments_folder, remove, remove_empty
from tokflow.store.config import bytes_of
from tokflow.store.listed_files import LATEST, make_latest
from tokflow.store.manifest import (
    MANIFEST_NAME,
    OWN_FOLDER,
    RUN_NAME,
    VERDICTS_NAME,
    folder_of_manifest,
    has_its_digest,
    is_output_name,
    read_manifest,
)
from tokflow.store.remote import Place, cache_folder, is_dataset_name
from tokflow.store.remote.objects import Entry, for_each
from tokflow.store.requests import RemoteStoreError

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


LIMIT_VARIABLE = "TOKFLOW_CACHE_BYTES"
SHARE_OF_DISK = 0.5
"""Share of the disk's free bytes and the cache's that the cache may take by default."""

KEPT_SECONDS = 600
"""Seconds for which a file stays after its last use."""

NOTED_SECONDS = 60
"""Seconds from one note of a use to the next."""

LOOK_SECONDS = 3_600
"""Seconds after which a process looks at the size of the cache, however little it fetched."""

STAGE_DEPTH = 3
"""Parts of the path of a stage's folder in the cache: place, dataset and stage."""

_STAY = (MANIFEST_NAME, RUN_NAME, DAMAGE_NAME)
_LOOKED_NAME = ".looked"

_used: dict[Path, float] = {}
_brought = 0
"""Bytes that this process has brought since it looked last."""


def note_use(folder: Path) -> None:
    """Remember that files of the output in a folder are used now."""
    now = time.monotonic()
    if now - _used.get(folder, -NOTED_SECONDS) >= NOTED_SECONDS:
        if len(_used) > 100_000:
            _used.clear()
        _used[folder] = now
        with suppress(OSError):
            os.utime(folder)


def note_bytes(num_bytes: int) -> None:
    """Account for fetched bytes; evict files now and then if they are over the limit."""
    global _brought
    _brought += num_bytes
    base = Path(cache_folder())
    looked = _status(base / _LOOKED_NAME)
    is_due = looked is None or time.time() - looked.st_mtime > LOOK_SECONDS
    if _brought >= limit_of(base) // 20 or is_due:
        _brought = 0
        make_room(base)


def limit_of(base: Path, *, taken: int = 0) -> int:
    """Return how many bytes the folder of all places may take; it takes `taken` now.

    Raises: ConfigError where the environment variable is no number of bytes.
    """
    named = os.environ.get(LIMIT_VARIABLE)
    if named is None:
        base.mkdir(parents=True, exist_ok=True)
        return int((shutil.disk_usage(base).free + taken) * SHARE_OF_DISK)
    try:
        return bytes_of(named)
    except ValueError:
        raise ConfigError(
            where=LIMIT_VARIABLE,
            expected="a number of bytes such as 500GB",
            found=repr(named),
            remedy="correct it, or leave it out for half of what is free",
        ) from None


@dataclass(frozen=True, slots=True)
class _Cached:
    """An output of which files are on this disk."""

    folder: Path
    used: float
    """Seconds since 1970."""
    files: dict[Path, os.stat_result]
    """Those that may go."""

    @property
    def num_bytes(self) -> int:
        return sum(status.st_size for status in self.files.values())


def make_room(base: Path) -> None:
    """Let files go until what is left takes nine tenths of the limit; nothing if that is kept, or
    another process does it now."""
    with (base / _LOOKED_NAME).open("w") as looked:
        try:
            fcntl.flock(looked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        outputs = list(_cached(base))
        taken = sum(each.num_bytes for each in outputs)
        limit = limit_of(base, taken=taken)
        if taken <= limit:
            return
        too_much, recent = taken - 0.9 * limit, time.time() - KEPT_SECONDS
        for each in sorted(outputs, key=lambda each: each.used):
            status = _status(each.folder)
            is_used = each.used > recent or (status is not None and status.st_mtime > each.used)
            if too_much > 0 and not is_used:
                for path in each.files:
                    path.unlink(missing_ok=True)
                too_much -= each.num_bytes
        in_use = [of for each in outputs if each.used > recent for of in _of_export(each)]
        for path, status in sorted(in_use, key=lambda of: of[1].st_mtime):
            if too_much > 0 and status.st_mtime <= recent:
                too_much -= status.st_size
                path.unlink(missing_ok=True)


def _of_export(output: _Cached) -> list[tuple[Path, os.stat_result]]:
    """Return the files of an export that may go while it is used, as one larger than the limit is
    by a training: loaders find them gone and bring them again. None of an output without a format,
    whose readers take a file to stay."""
    with suppress(TokflowError):
        if "format" in read_manifest(output.folder).details:
            found = output.files.items()
            return [
                of for of in found if of[0].parent.name != OWN_FOLDER and of[0].suffix != ".part"
            ]
    return []


def _cached(base: Path) -> Iterator[_Cached]:
    """Yield the outputs in the folders of all places that may go.

    None goes that lies right in the folder of its stage: the tokenizer, of which a dataset has one,
    and whose files are read by their paths. Nor does what is not finished, which is hidden: it may
    be on its way to its URL.
    """
    for inner, folders, _ in os.walk(base):
        in_stage = len(Path(inner).relative_to(base).parts) == STAGE_DEPTH
        for folder in [Path(inner, name) for name in folders]:
            is_hidden = folder.name.startswith(".") and not is_segments_folder(folder)
            is_output = (folder / MANIFEST_NAME).exists() and not folder.is_symlink()
            if is_hidden or is_output:
                folders.remove(folder.name)
            if is_output and not is_hidden and not in_stage and (of_folder := _status(folder)):
                files = {path: of for path in _files(folder) if (of := _status(path)) is not None}
                used = max(of.st_mtime for of in (of_folder, *files.values()))
                yield _Cached(folder, used, files)


def _files(folder: Path) -> list[Path]:
    """Return the files of an output that may go."""
    found = (Path(inner, name) for inner, _, names in os.walk(folder) for name in names)
    stay = {folder / name for name in _STAY}
    return [path for path in found if path not in stay]


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a file; None of one that has gone, or has its name by now."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None

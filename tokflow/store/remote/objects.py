"""Objects below one URL, by their keys: S3's, or of whatever file system fsspec knows."""

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from tokflow.store import requests

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Entry:
    """One object, as a listing tells of it."""

    key: str
    num_bytes: int
    modified_ns: int
    """Nanoseconds since 1970; made of the etag below a second, where the store has only seconds."""
    etag: str = ""
    """Version of the content; empty where the store has none. On S3 the md5 of an object that was
    put at once."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes of an object between two positions."""

    key: str
    """Empty: of the file that is being put."""
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload in parts that was not finished: its parts are kept, and paid for, until it is
    aborted."""

    key: str
    name: str
    """Identifier that the store gave it."""
    begun_ns: int


class Objects:
    """The objects whose URLs begin with `url` and a `/`, of any fsspec file system but S3's; goes
    to other processes as its URL.

    Credentials, region and endpoint come from the environment of the library for that protocol.
    Methods may be called by several threads, and in processes that were forked. A request that
    fails in a way that may pass is made again, for about a minute; all public methods raise
    RemoteStoreError, which names the object's URL and no credentials, and OSError where a file of
    this disk cannot be written, or read.

    Tried: `memory` and `file`; gcsfs and adlfs against servers on one machine, which put an object
    that must be new as S3 does. A file system that cannot is asked first whether the object is
    there: of two writers at the same moment the last one's stays, which does no harm, since names
    of objects with different bytes differ.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._tries = requests.Tries(url)

    def put_new(self, key: str, data: bytes) -> bool:
        """Put an object unless there is one; return whether these bytes are there now.

        Only one of many writers of different bytes gets True, also where the answer to a try that
        put the object was lost.
        """
        with self._errors(key):
            try:
                self._put(key, data, is_new=True)
            except FileExistsError:
                return self.read(key) == data
            return True

    def put(self, key: str, data: bytes) -> None:
        """Put an object in the place of any other."""
        with self._errors(key):
            self._put(key, data)

    def put_file(self, path: Path, key: str, copies: Mapping[int, Piece] | None = None) -> None:
        """Put a file of this disk, in parts that go at the same time if it is large.

        `copies`: ranges of objects that are equal to ranges of the file, by where they begin in it;
        they do not overlap. S3 copies those of at least 8 MiB on the server, if they are there and
        their md5s are those of the file.
        """
        if copies:
            with self._errors(key, path, may_be_absent=True):
                self._put_file(path, key, copies)
                return
        with self._errors(key, path):
            self._put_file(path, key, {})

    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes | None:
        """Return the bytes of an object, or those between two positions as a slice has them; None
        where there is no object."""
        with self._errors(key, may_be_absent=True):
            return self._read(key, start, stop)
        return None

    def get_file(self, key: str, path: Path, num_bytes: int) -> bool:
        """Write an object of so many bytes to a file, by ranges that come at the same time if it is
        large; return False where there is no object.

        Nothing is compared: of an object of another size, or changed meanwhile, the file is wrong.
        """
        with self._errors(key, path, may_be_absent=True):
            self._get_file(key, path, num_bytes)
            return True
        return False

    def copy(self, source: str, key: str, num_bytes: int) -> None:
        """Put a copy of an object of so many bytes; S3 copies it on the server."""
        with self._errors(source):
            self._copy(source, key, num_bytes)

    def listed(self, prefix: str) -> Iterator[Entry]:
        """Yield the objects whose keys begin with `prefix` and a `/`, in order, a thousand at a
        request; none whose key is no path below a folder, which tokflow has not put there, nor a
        console's mark of an empty folder."""
        with self._errors(prefix):
            for entry in self._listed(f"{prefix}/" if prefix else ""):
                if _is_path_below(entry.key):
                    yield entry

    def names(self, prefix: str) -> list[str]:
        """Return the next parts, sorted, of the keys that begin with `prefix` and a `/`, where they
        can be names of files."""
        with self._errors(prefix):
            names = self._names(f"{prefix}/" if prefix else "")
            return sorted(filter(_is_path_below, names))

    def remove(self, keys: Iterable[str]) -> None:
        """Remove objects, a thousand at a request; those that are not there are no error."""
        with self._errors(""):
            self._remove(list(keys))

    def uploads(self, prefix: str) -> Iterator[Upload]:
        """Yield the uploads below `prefix` that were begun, and neither finished nor aborted.

        They may be under way now, in another process.
        """
        with self._errors(prefix):
            for upload in self._uploads(f"{prefix}/" if prefix else ""):
                if _is_path_below(upload.key):
                    yield upload

    def abort(self, upload: Upload) -> None:
        """Let the store forget the parts of an upload; no error where it has ended meanwhile."""
        with self._errors(upload.key):
            self._abort(upload)

    @contextmanager
    def _errors(
        self, key: str, path: Path | None = None, *, may_be_absent: bool = False
    ) -> Iterator[None]:
        """Raise what the block raises as a RemoteStoreError, but what is wrong with a file of this
        disk, or the disk, as it is. Where an object `may_be_absent`, the block ends at one that is
        not there, rather than its bucket."""
        try:
            yield
        except requests.RemoteStoreError:
            raise
        except Exception as error:
            if requests.is_of_this_disk(error, path):
                raise
            if not may_be_absent or not isinstance(error, FileNotFoundError):
                raise requests.error_of(f"{self.url}/{key}".rstrip("/"), error) from None

    # How fsspec's file systems are asked. A prefix is empty, or ends with a `/`.

    @property
    def _files(self) -> Any:
        return _file_system(os.getpid(), self.url)[0]

    def _read(self, key: str, start: int, stop: int | None) -> bytes:
        """Return bytes of an object; none behind its end. Raises: FileNotFoundError."""
        path = self._path(key)
        if stop is not None and stop <= start:
            return b""  # adlfs raises a ValueError
        try:
            data: bytes = self._tries(lambda: self._files.cat_file(path, start=start, end=stop))
        except Exception as error:
            if requests.status_of(error) != 416:  # of gcsfs and adlfs where it begins past the end
                raise
            return b""
        return data

    def _put(self, key: str, data: bytes, *, is_new: bool = False) -> None:
        """Put an object. Raises: FileExistsError where there is one and it must be new."""
        path, mode = self._path(key), "create" if is_new else "overwrite"
        if not self.url.startswith(("file:", "local:")):
            self._tries(lambda: self._files.pipe_file(path, data, mode=mode))
            return
        here = Path(path)  # written whole or not at all
        here.parent.mkdir(parents=True, exist_ok=True)
        temporary = here.with_name(f".{here.name}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            temporary.write_bytes(data)
            if is_new:
                os.link(temporary, here)
            else:
                temporary.replace(here)
        finally:
            temporary.unlink(missing_ok=True)

    def _put_file(self, path: Path, key: str, copies: Mapping[int, Piece]) -> None:
        """Put a file. Raises: FileNotFoundError where what is to be copied is not there, or has
        other bytes than the file, as far as the server tells."""
        there = self._path(key)
        self._tries(lambda: self._files.put_file(str(path), there))

    def _get_file(self, key: str, path: Path, num_bytes: int) -> None:
        there = self._path(key)
        self._tries(lambda: self._files.get_file(there, str(path)))

    def _copy(self, source: str, key: str, num_bytes: int) -> None:
        paths = self._path(source), self._path(key)
        self._tries(lambda: self._files.cp_file(*paths))

    def _listed(self, prefix: str) -> Iterator[Entry]:
        path = self._path(prefix).rstrip("/")
        try:
            found = self._tries(lambda: self._files.find(path, detail=True))
        except FileNotFoundError:
            return
        for name, info in sorted(found.items()):
            etag = str(info.get("etag") or info.get("ETag") or "").strip('"')
            key = name[len(self._path("")) :]
            yield Entry(key, int(info["size"]), _nanoseconds(info), etag)

    def _names(self, prefix: str) -> set[str]:
        path = self._path(prefix).rstrip("/")
        try:
            found = self._tries(lambda: self._files.ls(path, detail=False))
        except FileNotFoundError:
            return set()
        return {str(name).rstrip("/").rpartition("/")[2] for name in found}

    def _remove(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there are no error."""

        def remove(key: str) -> None:
            with suppress(FileNotFoundError):
                self._tries(lambda: self._files.rm_file(self._path(key)))

        with ThreadPoolExecutor(requests.AT_ONCE) as pool:
            list(pool.map(remove, keys))

    def _path(self, key: str) -> str:
        return f"{_file_system(os.getpid(), self.url)[1]}/{key}"

    def _uploads(self, prefix: str) -> Iterator[Upload]:
        """Yield unfinished uploads in parts, of a server that leaves them to who made them."""
        return iter(())

    def _abort(self, upload: Upload) -> None:
        """Remove the parts of an upload; nothing where it has ended meanwhile."""


def _is_path_below(key: str) -> bool:
    """Return whether a key is a path that stays below the folder it is joined to; who may write to
    a bucket chooses its keys."""
    names = key.split("/")
    return "\0" not in key and all(
        name not in {"", ".", ".."} and len(name.encode()) <= 255 for name in names
    )


def for_each(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return what `function` returns for each item, several at once; it must not call this.

    Raises: what it raises, of the first item in order, when all have been tried.
    """
    items = list(items)
    if len(items) < 2:
        return [function(item) for item in items]
    futures = [_threads(os.getpid()).submit(function, item) for item in items]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in errors:
        raise error
    return [future.result() for future in futures]


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Return the threads of a process, which a forked one does not have."""
    return ThreadPoolExecutor(requests.AT_ONCE, thread_name_prefix="requests")


@cache
def _file_system(process: int, url: str) -> tuple[Any, str]:
    """Return the file system of a URL and its path there; a fork has no connection of its own."""
    from fsspec.core import url_to_fs  # late: with its protocol's library it takes 0.3 s

    options = {"auto_mkdir": True} if url.startswith(("file:", "local:")) else {}
    files, path = url_to_fs(url, use_listings_cache=False, **options)
    return files, str(path).rstrip("/")


def _nanoseconds(info: dict[str, Any]) -> int:
    names = ("LastModified", "last_modified", "updated", "mtime", "created")
    time = next((info[name] for name in names if info.get(name) is not None), 0)
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    seconds = time.timestamp() if isinstance(time, datetime) else float(time)
    return int(seconds * 1e9)

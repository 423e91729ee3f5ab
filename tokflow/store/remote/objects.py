"""Objects below one URL, by their keys: S3's, or of whatever file system fsspec knows."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from tokflow.store.failures import RemoteStoreError, error_of, is_of_this_disk
from tokflow.store.remote.entry import Entry, Piece, Upload
from tokflow.store.urls import split_url

if TYPE_CHECKING:
    from tokflow.store.remote.filesystem import FileSystemObjects
    from tokflow.store.remote.s3 import S3Objects

__all__ = ["Objects", "RemoteStoreError"]


@dataclass(frozen=True)  # without slots, since it keeps its connections
class Objects:
    """The objects whose URLs begin with `url` and a `/`; goes to other processes as its URL.

    Credentials, region and endpoint come from the environment of the library for that protocol.
    Methods may be called by several threads, and in processes that were forked. A request that
    fails in a way that may pass is made again, for about a minute; all methods raise
    RemoteStoreError, which names the object's URL and no credentials, and OSError where a file of
    this disk cannot be written, or read.
    """

    url: str

    def put_new(self, key: str, data: bytes) -> bool:
        """Put an object unless there is one; return whether these bytes are there now.

        Of many writers of different bytes one alone is told so, also where the answer to a try that
        put the object was lost.
        """
        with self._errors(key):
            try:
                self._server.put(key, data, is_new=True)
            except FileExistsError:
                return self.read(key) == data
            return True

    def put(self, key: str, data: bytes) -> None:
        """Put an object in the place of any other."""
        with self._errors(key):
            self._server.put(key, data)

    def put_file(self, path: Path, key: str, copies: Mapping[int, Piece] | None = None) -> None:
        """Put a file of this disk, in parts that go at the same time if it is large.

        `copies`: ranges of objects that are equal to ranges of the file, by where they begin in it;
        they do not overlap. S3 copies those of at least 8 MiB on the server, if they are there and
        their md5s are those of the file.
        """
        with self._errors(key, path):
            if copies:
                with _object_may_be_absent(path):
                    self._server.put_file(path, key, copies)
                    return
            self._server.put_file(path, key, {})

    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes | None:
        """Return the bytes of an object, or those between two positions as a slice has them; None
        where there is no object."""
        with self._errors(key), _object_may_be_absent():
            return self._server.read(key, start, stop)
        return None

    def get_file(self, key: str, path: Path, num_bytes: int) -> bool:
        """Write an object of so many bytes to a file, by ranges that come at the same time if it is
        large; return False where there is no object.

        Nothing is compared: of an object of another size, or changed meanwhile, the file is wrong.
        """
        with self._errors(key, path), _object_may_be_absent(path):
            self._server.get_file(key, path, num_bytes)
            return True
        return False

    def copy(self, source: str, key: str, num_bytes: int) -> None:
        """Put a copy of an object of so many bytes; S3 copies it on the server."""
        with self._errors(source):
            self._server.copy(source, key, num_bytes)

    def listed(self, prefix: str) -> Iterator[Entry]:
        """Yield the objects whose keys begin with `prefix` and a `/`, in order, a thousand at a
        request; none whose key is no path below a folder, which tokflow has not put there, nor a
        console's mark of an empty folder."""
        with self._errors(prefix):
            for entry in self._server.listed(f"{prefix}/" if prefix else ""):
                if _is_path_below(entry.key):
                    yield entry

    def names(self, prefix: str) -> list[str]:
        """Return the next parts, sorted, of the keys that begin with `prefix` and a `/`, where they
        can be names of files."""
        with self._errors(prefix):
            names = self._server.names(f"{prefix}/" if prefix else "")
            return sorted(filter(_is_path_below, names))

    def remove(self, keys: Iterable[str]) -> None:
        """Remove objects, a thousand at a request; those that are not there are no error."""
        with self._errors(""):
            self._server.remove(list(keys))

    def uploads(self, prefix: str) -> Iterator[Upload]:
        """Yield the uploads below `prefix` that were begun, and neither finished nor aborted.

        They may be under way now, in another process.
        """
        with self._errors(prefix):
            for upload in self._server.uploads(f"{prefix}/" if prefix else ""):
                if _is_path_below(upload.key):
                    yield upload

    def abort(self, upload: Upload) -> None:
        """Let the store forget the parts of an upload; no error where it has ended meanwhile."""
        with self._errors(upload.key):
            self._server.abort(upload)

    def __reduce__(self) -> tuple[Any, ...]:
        return Objects, (self.url,)

    @property
    def _server(self) -> Union["S3Objects", "FileSystemObjects"]:
        """What makes the requests, of this process: a fork has no connection of its own."""
        servers = self.__dict__.setdefault("_servers", {})
        process = os.getpid()
        if process not in servers:
            servers[process] = _server_of(self.url)
        server: S3Objects | FileSystemObjects = servers[process]
        return server

    @contextmanager
    def _errors(self, key: str, path: Path | None = None) -> Iterator[None]:
        """Raise what the block raises as a RemoteStoreError, but what is wrong with a file of this
        disk, or the disk, as it is."""
        try:
            yield
        except RemoteStoreError:
            raise
        except Exception as error:
            if is_of_this_disk(error, path):
                raise
            raise error_of(f"{self.url}/{key}".rstrip("/"), error) from None


@contextmanager
def _object_may_be_absent(path: Path | None = None) -> Iterator[None]:
    """Let the block end where an object is not there, rather than its bucket or a file of this
    disk."""
    try:
        yield
    except FileNotFoundError as error:
        if is_of_this_disk(error, path):
            raise


def _is_path_below(key: str) -> bool:
    """Return whether a key is a path that stays below the folder it is joined to; who may write to
    a bucket chooses its keys."""
    names = key.split("/")
    return "\0" not in key and all(
        name not in {"", ".", ".."} and len(name.encode()) <= 255 for name in names
    )


def _server_of(url: str) -> Union["S3Objects", "FileSystemObjects"]:
    if split_url(url).scheme in {"s3", "s3a"}:
        from tokflow.store.remote.s3 import S3Objects

        return S3Objects(url)
    from tokflow.store.remote.filesystem import FileSystemObjects

    return FileSystemObjects(url)

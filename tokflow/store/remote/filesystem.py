"""Objects of any fsspec file system but S3's, by their keys.

Tried: `memory` and `file`. By their source, gcsfs (`ifGenerationMatch=0`) and adlfs (`overwrite`
is False) put an object that must be new as S3 does. A file system that cannot is asked first
whether the object is there: of two writers at the same moment the last one's stays, which does no
harm, since names of objects with different bytes differ.
"""

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from tokflow.store.failures import Tries, status_of
from tokflow.store.remote.entry import Entry, Piece, Upload

_AT_ONCE = 16


class FileSystemObjects:
    """The objects of a file system below a path. What asks it raises what it raises."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs  # late: with its protocol's library it takes 0.3 s

        self._is_local = url.startswith(("file:", "local:"))
        options = {"auto_mkdir": True} if self._is_local else {}
        self._files, path = url_to_fs(url, use_listings_cache=False, **options)
        self._root = str(path).rstrip("/")
        self._tries = Tries(url)

    def read(self, key: str, start: int, stop: int | None) -> bytes:
        """Return the bytes of an object between two positions.

        Raises: FileNotFoundError.
        """
        path = self._path(key)
        try:
            data: bytes = self._tries(lambda: self._files.cat_file(path, start=start, end=stop))
        except Exception as error:
            if status_of(error) != 416:  # gcsfs' where it begins behind the end
                raise
            return b""
        return data

    def put(self, key: str, data: bytes, *, is_new: bool = False) -> None:
        """Put an object. Raises: FileExistsError where there is one and it must be new."""
        path = self._path(key)
        if self._is_local:
            _put_here(Path(path), data, is_new=is_new)
            return
        mode = "create" if is_new else "overwrite"
        self._tries(lambda: self._files.pipe_file(path, data, mode=mode))

    def put_file(self, path: Path, key: str, copies: Mapping[int, Piece]) -> None:
        """Put a file of this disk, all of it: nothing is copied there."""
        there = self._path(key)
        self._tries(lambda: self._files.put_file(str(path), there))

    def get_file(self, key: str, path: Path, num_bytes: int) -> None:
        """Write an object to a file. Raises: FileNotFoundError where there is no object."""
        there = self._path(key)
        self._tries(lambda: self._files.get_file(there, str(path)))

    def copy(self, source: str, key: str, num_bytes: int) -> None:
        """Put a copy of an object. Raises: FileNotFoundError."""
        paths = self._path(source), self._path(key)
        self._tries(lambda: self._files.cp_file(*paths))

    def listed(self, prefix: str) -> Iterator[Entry]:
        """Yield the objects whose keys begin with a prefix, which ends with a `/` or is empty."""
        path = self._path(prefix).rstrip("/")
        try:
            found = self._tries(lambda: self._files.find(path, detail=True))
        except FileNotFoundError:
            return
        for name, info in sorted(found.items()):
            etag = str(info.get("etag") or info.get("ETag") or "").strip('"')
            key = name[len(self._root) + 1 :]
            yield Entry(key, int(info["size"]), _nanoseconds(info), etag)

    def names(self, prefix: str) -> set[str]:
        """Return the next parts of the keys that begin with a prefix."""
        path = self._path(prefix).rstrip("/")
        try:
            found = self._tries(lambda: self._files.ls(path, detail=False))
        except FileNotFoundError:
            return set()
        return {str(name).rstrip("/").rpartition("/")[2] for name in found}

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects."""

        def remove(key: str) -> None:
            with suppress(FileNotFoundError):
                self._tries(lambda: self._files.rm_file(self._path(key)))

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(remove, keys))

    def uploads(self, prefix: str) -> Iterator[Upload]:
        """Yield nothing: uploads that are not finished are the file system's to remove."""
        return iter(())

    def abort(self, upload: Upload) -> None:
        """Do nothing; see `uploads`."""

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"


def _put_here(path: Path, data: bytes, *, is_new: bool) -> None:
    """Write a file of this disk whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        temporary.write_bytes(data)
        if is_new:
            os.link(temporary, path)
        else:
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _nanoseconds(info: dict[str, Any]) -> int:
    names = ("LastModified", "last_modified", "updated", "mtime", "created")
    time = next((info[name] for name in names if info.get(name) is not None), 0)
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    seconds = time.timestamp() if isinstance(time, datetime) else float(time)
    return int(seconds * 1e9)

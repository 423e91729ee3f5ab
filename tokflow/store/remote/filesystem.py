"""Objects of any fsspec file system but S3's, by their keys.

Tried: `memory` and `file`; gcsfs and adlfs against servers on one machine, which put an object that
must be new as S3 does. A file system that cannot is asked first whether the object is there: of two
writers at the same moment the last one's stays, which does no harm, since names of objects with
different bytes differ.
"""

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from tokflow.store.remote.objects import Entry, Objects, Piece
from tokflow.store.request_errors import Tries, status_of

_AT_ONCE = 16


class FileSystemObjects(Objects):
    """The objects of a file system below a path. What asks it raises what it raises."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._tries = Tries(url)

    @property
    def _files(self) -> Any:
        return _file_system(os.getpid(), self.url)[0]

    def _read(self, key: str, start: int, stop: int | None) -> bytes:
        path = self._path(key)
        if stop is not None and stop <= start:
            return b""  # adlfs raises a ValueError
        try:
            data: bytes = self._tries(lambda: self._files.cat_file(path, start=start, end=stop))
        except Exception as error:
            if status_of(error) != 416:  # of gcsfs and adlfs where it begins past the end
                raise
            return b""
        return data

    def _put(self, key: str, data: bytes, *, is_new: bool = False) -> None:
        path = self._path(key)
        if self.url.startswith(("file:", "local:")):
            _put_here(Path(path), data, is_new=is_new)
            return
        mode = "create" if is_new else "overwrite"
        self._tries(lambda: self._files.pipe_file(path, data, mode=mode))

    def _put_file(self, path: Path, key: str, copies: Mapping[int, Piece]) -> None:
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
        def remove(key: str) -> None:
            with suppress(FileNotFoundError):
                self._tries(lambda: self._files.rm_file(self._path(key)))

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(remove, keys))

    def _path(self, key: str) -> str:
        return f"{_file_system(os.getpid(), self.url)[1]}/{key}"


@cache
def _file_system(process: int, url: str) -> tuple[Any, str]:
    """Return the file system of a URL and its path there; a fork has no connection of its own."""
    from fsspec.core import url_to_fs  # late: with its protocol's library it takes 0.3 s

    options = {"auto_mkdir": True} if url.startswith(("file:", "local:")) else {}
    files, path = url_to_fs(url, use_listings_cache=False, **options)
    return files, str(path).rstrip("/")


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

"""A file reached by any other protocol that fsspec knows: s3, gs, hf, sftp, memory and so on."""

import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tokflow.errors import ConfigError
from tokflow.raw.globs import FILE, FOLDER, Matches, escaped
from tokflow.raw.remote import Body, TransientError, Validator, remote_error
from tokflow.raw.urls import redact, safe_text

_T = TypeVar("_T")

BLOCK_BYTES = 8 * 2**20
"""Asked for by one request of fsspec."""

_ETAGS = ("ETag", "etag", "blob_id", "generation", "checksum", "md5")
_TIMES = ("LastModified", "last_modified", "updated", "modified", "mtime", "modify", "created")
_NO_USE = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    ImportError,
    TypeError,
    ValueError,
)
"""Errors that another try would meet again."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A file at an fsspec URL; credentials come from where its library looks for them."""

    url: str = field(repr=False)

    def probe(self) -> Validator:
        """Ask for the file's properties, past any cache of fsspec."""
        file_system, path = _file_system(self.url)

        def ask() -> dict[str, Any]:
            file_system.invalidate_cache()
            return dict(file_system.info(path))

        info = _call(ask, self.url)
        if info.get("type") == "directory":
            raise remote_error(self.url, "a folder", remedy="write /* after it for its files")
        return Validator(
            etag=_first(info, _ETAGS), last_modified=_first(info, _TIMES), num_bytes=info["size"]
        )

    @contextmanager
    def open_at(self, offset: int, stop: int | None = None) -> Iterator[Body]:
        """Open the file and skip to `offset`; with `stop` nothing is read ahead."""
        file_system, path = _file_system(self.url)
        num_bytes = _call(lambda: file_system.size(path), self.url)
        if num_bytes is None:
            raise remote_error(
                self.url,
                "none told",
                expected="a size, without which a cut download looks whole",
                remedy="download it by other means and name the local file under raw.files",
            )
        options = {"block_size": BLOCK_BYTES} | ({"cache_type": "none"} if stop else {})
        file = _call(lambda: file_system.open(path, "rb", **options), self.url)

        def read(size: int) -> bytes:
            most = size if stop is None else min(size, stop - file.tell())
            return _call(lambda: bytes(file.read(most)), self.url)

        with file:
            _call(lambda: file.seek(offset), self.url)
            yield Body(offset, num_bytes, read, stop=stop)


def find_objects(url: str, folder: str, below: Sequence[str]) -> Matches:
    """Return what matches below `folder`, whose URL is `url`.

    As on this machine hidden names match only a pattern that names the dot; there is no way to
    tell which component matched which, so one dot in the pattern admits all.
    """
    file_system, root = _file_system(url)
    root = root.rstrip("/")
    pattern = "/".join((escaped(root), *below, *(("*",) if below[-1] == "**" else ())))

    def find() -> dict[str, str]:
        file_system.invalidate_cache()
        found = file_system.glob(pattern, detail=True)
        return {_relative(path, root): info["type"] for path, info in found.items()}

    found = _call(find, url)
    if not any(name.startswith(".") for name in below):
        found = {path: kind for path, kind in found.items() if "/." not in f"/{path}"}
    kinds = {"file": FILE, "directory": FOLDER}
    return {
        posixpath.join(folder, path): kinds.get(kind, f"something of the type {kind!r}")
        for path, kind in found.items()
    }


def names_in(folder: str) -> list[str] | None:
    """Return the names in the URL `folder`; None if there is no such folder."""
    file_system, root = _file_system(folder)
    root = root.rstrip("/")

    def names() -> list[str] | None:
        try:
            return sorted(_relative(path, root) for path in file_system.ls(root, detail=False))
        except FileNotFoundError:
            return None

    return _call(names, folder)


def _relative(path: str, root: str) -> str:
    return path[len(root) :].lstrip("/") if path.startswith(root) else path


def _file_system(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    try:
        file_system, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        protocol = url.split("://", 1)[0]
        raise ConfigError(
            where=f"raw.files {redact(url)!r}",
            expected=f"fsspec to know the protocol {protocol!r}",
            found=safe_text(error, url),
            remedy=f"install the package that fsspec needs for {protocol}://, or correct it",
        ) from None
    return file_system, str(path)


def _call(function: Callable[[], _T], url: str) -> _T:
    """Call into fsspec; what it raises becomes an error whose text has no secrets."""
    try:
        return function()
    except _NO_USE as error:
        remedy = "correct the URL under raw.files, or the credentials it is read with"
        raise remote_error(url, safe_text(error, url), remedy=remedy) from None
    except Exception as error:
        # Each library has its own exceptions for a broken connection; most are no OSError.
        raise TransientError(safe_text(error, url)) from None


def _first(info: dict[str, Any], names: Sequence[str]) -> str | None:
    found = (str(info[name]) for name in names if info.get(name) is not None)
    return next(found, None)

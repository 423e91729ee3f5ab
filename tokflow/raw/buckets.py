"""Files of object stores and of whatever else fsspec knows: s3, gs, az, sftp, memory and so on.

S3 is asked by the client that stores use, everything else by the libraries of fsspec.
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeVar

from tokflow.errors import ConfigError, FetchError, RawFileError, TokflowError
from tokflow.formatting import redact
from tokflow.raw.globs import FILE, FOLDER, Matches, select
from tokflow.raw.remote_version import (
    AnotherVersionError,
    Body,
    Retries,
    TransientError,
    Validator,
    fetch_error,
    remote_error,
)
from tokflow.store.requests import S3Client, code_of, error_of, status_of
from tokflow.store.urls import safe_text

_T = TypeVar("_T")

BLOCK_BYTES = 8 * 2**20
"""Bytes of one request."""

_ETAGS = ("ETag", "etag", "blob_id", "generation", "checksum", "md5")
_LISTED = ("ETag", "generation", "etag", "content_md5")
"""Properties in a listing that identify a version: for gs the generation, because its etag changes
with the labels of an object."""
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
"""Errors that another try would not avoid."""

_Infos = dict[str, dict[str, Any]]
"""The properties of files and folders, by path; `type` is `file` or `directory`."""


class _Bucket:
    """Files in a bucket of S3."""

    def __init__(self, url: str) -> None:
        bucket, _, self._key = url.partition("://")[2].partition("/")
        self._client = _client(f"s3://{bucket}")
        self._pages = partial(self._client.pages, "list_objects_v2", "ContinuationToken")

    def info(self) -> dict[str, Any]:
        try:
            found = self._client.ask("head_object", Key=self._key)
        except FileNotFoundError:
            if next(self._pages(Prefix=f"{self._key}/", MaxKeys=1)).get("Contents"):
                return {"type": "directory"}
            raise FileNotFoundError(f"{self._client.bucket}/{self._key}") from None
        return {**found, "type": "file", "size": found["ContentLength"]}

    def read(self, start: int, stop: int, version: Validator | None) -> bytes:
        asked = {} if version is None else {"IfMatch": f'"{version.bare().etag}"'}
        try:
            return self._client.read(self._key, start, stop, **asked)
        except Exception as error:
            if status_of(error) != 412:
                raise
            raise AnotherVersionError from None

    def find(self, below: Sequence[str]) -> _Infos:
        return find_keys(self._pages, f"{self._key.rstrip('/')}/".removeprefix("/"), below)


def find_keys(
    pages: Callable[..., Iterator[dict[str, Any]]], prefix: str, below: Sequence[str]
) -> _Infos:
    """Return the files and folders that match below a prefix, of pages with keys of a bucket, which
    hold a thousand keys of whatever folders: many small folders cost few requests."""
    start, found = prefix + re.split(r"[*?[]", below[0])[0], _Infos()
    asked = {"Delimiter": "/"} if len(below) == 1 and below[0] != "**" else {}
    for page in pages(Prefix=start, **asked):
        here = _Infos()
        for each in (*page.get("Contents", []), *page.get("CommonPrefixes", [])):
            key = str(each.get("Key") or each["Prefix"])[len(prefix) :]
            *folders, name = key.split("/")
            if "" in folders:
                continue
            for depth in range(len(folders)):  # behind a file of the same name, if there is one
                here.setdefault("/".join(folders[: depth + 1]), {"type": "directory"})
            if name:
                here[key] = {"type": "file", "ETag": each.get("ETag"), "size": each["Size"]}
        found |= {key: of for key, of in select(here, below).items() if key not in found}
    return found


class _FileSystem:
    """Files in a file system of fsspec."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        scheme = url.partition("://")[0]
        try:
            self._files, self._path = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                where=f"raw.files {redact(url)!r}",
                expected=f"fsspec to know the protocol {scheme!r}",
                found=safe_text(error, url),
                remedy=f"install the package that fsspec needs for {scheme}://, or correct it",
            ) from None

    def info(self) -> dict[str, Any]:
        self._files.invalidate_cache()
        return dict(self._files.info(self._path))

    def read(self, start: int, stop: int, version: Validator | None) -> bytes:
        if getattr(self._files, "async_impl", False):
            return bytes(self._files.cat_file(self._path, start=start, end=stop))
        with self._files.open(self._path, "rb", cache_type="none") as file:
            file.seek(start)
            return bytes(file.read(stop - start))

    def find(self, below: Sequence[str]) -> _Infos:
        self._files.invalidate_cache()
        root, depth = self._path.rstrip("/"), None if "**" in below else len(below)
        found = self._files.find(root, maxdepth=depth, withdirs=True, detail=True)
        below_root = {path.removeprefix(root).strip("/"): info for path, info in found.items()}
        return select(below_root, below)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A file at such a URL; credentials come from where its library looks for them."""

    url: str = field(repr=False)
    version: Validator | None = None
    """The version of which ranges are read; None: the one that is there."""

    def probe(self) -> Validator:
        """Ask for the file's properties; the version is as in a listing, if that has one."""
        info = self.info()
        return _version_of(info) or Validator(
            etag=_first(info, _ETAGS), last_modified=_first(info, _TIMES), num_bytes=info["size"]
        )

    def info(self) -> dict[str, Any]:
        """Return the properties of the file. Raises: RawFileError; TransientError."""
        info = _call(lambda: _place(self.url).info(), self.url)
        if info.get("type") == "directory":
            raise remote_error(self.url, "a folder", remedy="write /* after it for its files")
        return info

    @contextmanager
    def open_at(self, offset: int, stop: int | None = None) -> Iterator[Body]:
        """Read the file in ranges, from `offset` on; the first at once."""
        version = self.version if _is_s3(self.url) and self.version and self.version.etag else None
        num_bytes = self.info()["size"] if self.version is None else self.version.num_bytes
        if num_bytes is None:
            raise remote_error(
                self.url,
                "none",
                expected="a size, without which a cut download looks whole",
                remedy="download it by other means and name the local file under raw.files",
            )
        position, end, rest = offset, num_bytes if stop is None else stop, b""

        def read(size: int) -> bytes:
            nonlocal position, rest
            if not rest and position < end:
                to = min(end, position + BLOCK_BYTES)
                rest = _call(lambda: _place(self.url).read(position, to, version), self.url)
                position += len(rest)
            data, rest = rest[:size], rest[size:]
            return data

        read(0)
        yield Body(offset, num_bytes, read, version, stop)


def find_objects(
    url_of: Callable[[str], str], versions: dict[str, Validator], folder: str, below: Sequence[str]
) -> Matches:
    """Return what matches below `folder`; the versions that are listed are put into `versions`."""
    url = url_of(folder)
    retries = Retries(url, partial(fetch_error, url, remedy="run again when it answers"))
    found = retries(lambda: _call(lambda: _place(url).find(below), url))
    matches: Matches = {}
    for path, info in found.items():
        path = posixpath.join(folder, path)
        kinds = {"file": FILE, "directory": FOLDER}
        matches[path] = kinds.get(info["type"], f"something of the type {info['type']!r}")
        if matches[path] == FILE and (version := _version_of(info)) is not None:
            versions[path] = version
    return matches


def version_at(url: str) -> Validator | None:
    """Return the version of a file, as in a listing; None where it is not known, as of a missing
    file, for which reading raises the error."""
    with suppress(RawFileError, TransientError):
        return _version_of(StoredObject(url).info())
    return None


def _version_of(info: dict[str, Any]) -> Validator | None:
    """Return the version of a listed file; None where its properties do not identify one."""
    etag, num_bytes = _first(info, _LISTED), info.get("size")
    found = Validator(etag=etag, num_bytes=num_bytes)
    return found.bare() if etag and num_bytes is not None and found.is_strong else None


def _first(info: dict[str, Any], names: Sequence[str]) -> str | None:
    found = (str(info[name]) for name in names if info.get(name) is not None)
    return next(found, None)


def _is_s3(url: str) -> bool:
    return url.lower().startswith(("s3://", "s3a://"))


def _place(url: str) -> _Bucket | _FileSystem:
    return _Bucket(url) if _is_s3(url) else _FileSystem(url)


@lru_cache(maxsize=8)
def _client(bucket: str) -> S3Client:
    """Return the client of a bucket, which remembers whether it was ever reached."""
    return S3Client(bucket)


def _call(function: Callable[[], _T], url: str) -> _T:
    """Ask a library; what it raises becomes an error whose text has no secrets.

    S3 was asked again for about a minute, by its client.
    """
    try:
        return function()
    except (TokflowError, AnotherVersionError):
        raise
    except Exception as error:
        of_s3 = error_of(url, error).fields() if _is_s3(url) else None
        if of_s3 and (isinstance(error, ImportError) or code_of(error) == "NoSuchBucket"):
            bucket = "/".join(url.split("/")[:3])
            raise ConfigError(**of_s3 | {"where": bucket}) from None
        if isinstance(error, _NO_USE) or (of_s3 and status_of(error) in {401, 403}):
            remedy = "correct the URL under raw.files, or the credentials it is read with"
            raise remote_error(url, safe_text(error, url), remedy=remedy) from None
        if of_s3:
            found = str(of_s3["found"]).removeprefix("S3Error: ")
            raise FetchError(**of_s3 | {"found": found}) from None
        # Each library has its own exceptions for a broken connection; most are no OSError.
        raise TransientError(safe_text(error, url)) from None

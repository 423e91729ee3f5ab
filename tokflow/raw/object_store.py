"""A file reached by any other protocol that fsspec knows: s3, gs, hf, sftp, memory and so on."""

import io
import os
import posixpath
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeVar

from tokflow.errors import ConfigError, FetchError, RawFileError, TokflowError
from tokflow.raw.globs import FILE, FOLDER, Matches, escaped
from tokflow.raw.remote import Body, TransientError, Validator, remote_error
from tokflow.raw.retries import Retries
from tokflow.raw.wild_folders import find_in_folders
from tokflow.shown import redact
from tokflow.store.failures import Tries, code_of, error_of, may_pass
from tokflow.store.urls import safe_text

_T = TypeVar("_T")

BLOCK_BYTES = 8 * 2**20
"""Asked for by one request of fsspec."""

_ETAGS = ("ETag", "etag", "blob_id", "generation", "checksum", "md5")
_LISTED = ("ETag", "generation", "etag", "content_md5")
"""What a listing has by which a version is known: of gs the generation, for its etag is another
when only labels of an object are changed."""
_S3 = ("s3", "s3a")
_ASKED_AT_ONCE = 16
_UNORDERED = "--x-s3"
"""At the end of the name of a bucket of S3 Express, whose listings are in no order."""
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
    version: Validator | None = None
    """The version that was listed, of which alone ranges are read; None: the one that is there."""
    is_listed: bool = False
    """Versions are told as a listing tells them, if it tells them."""

    def probe(self) -> Validator:
        """Ask for the file's properties, past any cache of fsspec."""
        info = self._info()
        if self.is_listed and (version := _version_of(info)) is not None:
            return version
        return Validator(
            etag=_first(info, _ETAGS), last_modified=_first(info, _TIMES), num_bytes=info["size"]
        )

    def _info(self) -> dict[str, Any]:
        file_system, path = _file_system(self.url)

        def ask() -> dict[str, Any]:
            file_system.invalidate_cache()
            return dict(file_system.info(path))

        info = _call(ask, self.url)
        if info.get("type") == "directory":
            raise remote_error(self.url, "a folder", remedy="write /* after it for its files")
        return info

    @contextmanager
    def open_at(self, offset: int, stop: int | None = None) -> Iterator[Body]:
        """Open the file and skip to `offset`; with `stop` nothing is read ahead."""
        file_system, path = _file_system(self.url)
        if self.version is not None and stop is not None:
            range_ = partial(_read_range, file_system, path, offset, stop, self.version)
            data, version = _call(range_, self.url)
            read_on = io.BytesIO(data).read
            yield Body(offset, self.version.num_bytes, read_on, version, offset + len(data))
            return
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


def find_objects(
    url: str, folder: str, below: Sequence[str]
) -> tuple[Matches, dict[str, Validator]]:
    """Return what matches below `folder`, whose URL is `url`, and the versions that are listed.

    As on this machine hidden names match only a pattern that names the dot; there is no way to
    tell which component matched which, so one dot in the pattern admits all.
    """
    file_system, root = _file_system(url)
    root = root.rstrip("/")
    pattern = "/".join((escaped(root), *below, *(("*",) if below[-1] == "**" else ())))

    def find() -> dict[str, dict[str, Any]]:
        file_system.invalidate_cache()
        found = file_system.glob(pattern, detail=True)
        return {_relative(path, root): info for path, info in found.items()}

    bucket, _, prefix = root.partition("/")
    is_walked = len(below) == 1 or "**" in below or bucket.endswith(_UNORDERED)
    if is_walked or not hasattr(file_system, "call_s3"):
        found = _listed(find, url)
    else:
        list_ = partial(file_system.call_s3, "list_objects_v2", **file_system.req_kw)
        found = find_in_folders(
            lambda **asked: _listed(partial(list_, Bucket=bucket, **asked), url),
            f"{prefix}/" if prefix else "",
            below,
        )
    if not any(name.startswith(".") for name in below):
        found = {path: info for path, info in found.items() if "/." not in f"/{path}"}
    found = {posixpath.join(folder, path): info for path, info in found.items()}
    kinds = {"file": FILE, "directory": FOLDER}
    matches = {
        path: kinds.get(info["type"], f"something of the type {info['type']!r}")
        for path, info in found.items()
    }
    versions = {path: _version_of(found[path]) for path, kind in matches.items() if kind == FILE}
    return matches, {path: version for path, version in versions.items() if version is not None}


def versions_of(urls: Sequence[str]) -> dict[str, Validator]:
    """Return the versions of files that are named, as a listing would tell them.

    None of one that cannot be told, as where there is no such file: whoever reads it says why.
    """

    def ask(url: str) -> Validator | None:
        try:
            return _version_of(StoredObject(url)._info())
        except (RawFileError, TransientError):
            return None

    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        found = zip(urls, pool.map(ask, urls), strict=True)
        return {url: version for url, version in found if version is not None}


def names_in(folder: str) -> list[str] | None:
    """Return the names in the URL `folder`; None if there is no such folder."""
    file_system, root = _file_system(folder)
    root = root.rstrip("/")

    def names() -> list[str] | None:
        try:
            return sorted(_relative(path, root) for path in file_system.ls(root, detail=False))
        except FileNotFoundError as error:
            if code_of(error) == "NoSuchBucket":
                origin = "/".join(folder.split("/")[:3])
                raise ConfigError(**error_of(origin, error).fields()) from None
            return None

    return _listed(names, folder)


def _listed(ask: Callable[[], _T], url: str) -> _T:
    """Return an answer to a listing, which is asked for as files are."""

    def give_up(found: str) -> FetchError:
        return FetchError(**remote_error(url, found, remedy="run again when it answers").fields())

    retries = Retries(url, give_up)
    while True:
        try:
            return _call(ask, url)
        except TransientError as error:
            retries.wait(error, has_advanced=False)


def _relative(path: str, root: str) -> str:
    return path[len(root) :].lstrip("/") if path.startswith(root) else path


def _version_of(info: dict[str, Any]) -> Validator | None:
    """Return the version of a file that is listed; None where that does not tell it from others."""
    etag, num_bytes = _first(info, _LISTED), info.get("size")
    found = Validator(etag=etag, num_bytes=num_bytes)
    return found.bare() if etag and num_bytes is not None and found.is_strong else None


def _read_range(
    file_system: Any, path: str, start: int, stop: int, version: Validator
) -> tuple[bytes, Validator | None]:
    """Return the bytes between two positions, and the version that they are of.

    S3 is asked for that version alone; elsewhere it is asked afterwards which version is there.
    """
    if hasattr(file_system, "call_s3"):
        from fsspec.asyn import sync

        asked = file_system, path, start, stop, version
        found: tuple[bytes, Validator] = sync(file_system.loop, _range_of_s3, *asked)
        return found
    data = bytes(file_system.cat_file(path, start=start, end=stop))
    file_system.invalidate_cache()
    return data, _version_of(file_system.info(path))


async def _range_of_s3(
    file_system: Any, path: str, start: int, stop: int, version: Validator
) -> tuple[bytes, Validator]:
    bucket, key, _ = file_system.split_path(path)
    asked = {"Range": f"bytes={start}-{stop - 1}", "IfMatch": f'"{version.etag}"'}
    try:
        answer = await file_system._call_s3("get_object", Bucket=bucket, Key=key, **asked)
    except OSError as error:
        response = getattr(error.__cause__, "response", {})
        if response.get("ResponseMetadata", {}).get("HTTPStatusCode") != 412:
            raise
        return b"", Validator(etag="another")
    async with answer["Body"] as body:
        return await body.read(), version


def _file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path there: one for all threads of a process where
    its library allows that, for each has connections of its own."""
    from fsspec.core import url_to_fs

    scheme, _, rest = url.partition("://")
    shared = _shared(os.getpid(), f"{scheme}://{rest.partition('/')[0]}")
    if shared:
        return shared[0], str(shared[0]._strip_protocol(url))
    once = {"config_kwargs": {"retries": {"total_max_attempts": 1}}} if scheme in _S3 else {}
    try:
        file_system, path = url_to_fs(url, **once)
    except (ImportError, ValueError) as error:
        protocol = url.split("://", 1)[0]
        raise ConfigError(
            where=f"raw.files {redact(url)!r}",
            expected=f"fsspec to know the protocol {protocol!r}",
            found=safe_text(error, url),
            remedy=f"install the package that fsspec needs for {protocol}://, or correct it",
        ) from None
    if once:
        file_system.retries = 1
    if getattr(file_system, "async_impl", False) and "::" not in url:
        shared.append(file_system)
    return file_system, str(path)


@lru_cache(maxsize=8)
def _shared(_process: int, _origin: str) -> list[Any]:
    """Return the file system of a host or bucket, or nothing yet."""
    return []


@lru_cache(maxsize=8)
def _tries(_process: int, bucket: str) -> Tries:
    """Return the tries at a bucket, which remember whether it was ever reached."""
    return Tries(bucket)


def _call(function: Callable[[], _T], url: str) -> _T:
    """Call into fsspec; what it raises becomes an error whose text has no secrets.

    S3 is asked again here alone, for about a minute, since s3fs is told to ask once.
    """
    scheme, _, rest = url.partition("://")
    tries = _tries(os.getpid(), f"s3://{rest.partition('/')[0]}") if scheme in _S3 else None
    try:
        return function() if tries is None else tries(function)
    except TokflowError:
        raise
    except _NO_USE as error:
        remedy = "correct the URL under raw.files, or the credentials it is read with"
        raise remote_error(url, safe_text(error, url), remedy=remedy) from None
    except Exception as error:
        if tries is not None and may_pass(error):
            fields, code = error_of(url, error).fields(), code_of(error)
            fields["found"] = f"{code}: {fields['found']}".removeprefix(": ")
            raise FetchError(**fields) from None
        # Each library has its own exceptions for a broken connection; most are no OSError.
        raise TransientError(safe_text(error, url)) from None


def _first(info: dict[str, Any], names: Sequence[str]) -> str | None:
    found = (str(info[name]) for name in names if info.get(name) is not None)
    return next(found, None)

"""Fetch a file from elsewhere into the store, once for each version of it.

raw/<key>/<sha256[:16]>/<file name>, manifest.json    a complete copy
raw/<key>/.source.json                                the newest copy, and by what it is known
raw/<key>/.part-<URL>, .part-<URL>.json               a download under way
raw/<key>/.lock                                       held by the process that downloads
"""

import fcntl
import hashlib
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tokflow.errors import RawFileError
from tokflow.raw.hashes import Progress
from tokflow.raw.listing import RawSource
from tokflow.raw.partial import BLOCK_BYTES, PartialDownload
from tokflow.raw.remote import RemoteFile, TransientError, Validator, remote_error
from tokflow.raw.urls import is_url, redact, split_url
from tokflow.store.atomic import new_file, new_folder
from tokflow.store.manifest import (
    MANIFEST_NAME,
    RUN_NAME,
    FileEntry,
    Manifest,
    Recipe,
    is_intact,
    write_manifest,
)

RAW_VERSION = 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """Tries at a broken connection or a busy server."""

    num_tries: int = 5
    """Tries in a row that bring nothing new; each 4 MB that arrive begin the count again."""
    first_wait_seconds: float = 1.0
    """Doubled after each try, up to 30 s; a longer wait that the server asks for is kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """A file in the store."""

    path: Path
    num_bytes: int
    sha256: str
    is_new: bool
    """It was hashed on its way here just now, so there is no need to read it again."""


def fetch(
    source: RawSource,
    *,
    store: Path,
    progress: Progress | None = None,
    offline: bool = False,
    retry: Retry | None = None,
) -> Copy:
    """Return the copy in `store` of the version of the file that is at its URL now.

    The server is asked once which version that is (ETag, Last-Modified and size; the size alone
    if it tells no more; always downloaded if it tells nothing), and only another version is
    downloaded, to a folder of its own. A download that broke off, or whose process was killed,
    goes on where it was if the version is still the same and the server can. With `offline` the
    newest copy is taken without asking.

    Raises: RawFileError if the server cannot be asked, although a copy may be there: the caller
    would not know that it is outdated.
    """
    folder = store / "raw" / source.key
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / ".lock"):
        known = _read_known(folder, source)
        if offline:
            return _copy_offline(known, source, folder)
        remote = _remote_file(source)
        fetching = _Fetching(source, store, remote, known, progress)
        return _with_retries(fetching, retry or Retry())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """The newest copy, as `.source.json` remembers it."""

    url: str
    """Redacted."""
    url_sha256: str
    """Of the URL without userinfo: a guessed password could be checked against it."""
    validator: Validator
    sha256: str
    num_bytes: int


@dataclass(slots=True)
class _Fetching:
    """One file, which is tried until it is there."""

    source: RawSource
    store: Path
    remote: RemoteFile
    known: _Known | None
    progress: Progress | None
    furthest: int = field(default=0, init=False)
    """Most bytes that were on disk after a try."""

    @property
    def folder(self) -> Path:
        return self.store / "raw" / self.source.key

    def attempt(self) -> Copy:
        validator = self.remote.probe()
        known = self.known
        if known is not None and known.validator == validator and not validator.says_nothing:
            return _copy(known, self.source, self.folder, is_new=False)
        started = time.monotonic()
        with PartialDownload(
            self.folder / f".part-{_url_sha256(self.source)[:16]}", validator
        ) as part:
            try:
                self._download(part)
            finally:
                self.furthest = max(self.furthest, part.num_bytes)
        return self._publish(part, fetch_seconds=time.monotonic() - started)

    def _download(self, part: PartialDownload) -> None:
        if not part.is_complete:
            with self.remote.open_at(part.num_bytes) as body:
                if body.offset != part.num_bytes:
                    part.restart()
                part.total = body.num_bytes
                while block := body.read(BLOCK_BYTES):
                    part.append(block)
                    if self.progress is not None:
                        self.progress(part.num_bytes, part.total)
        if part.total is not None and part.num_bytes != part.total:
            found = f"{part.num_bytes:,} of {part.total:,} bytes"
            if part.num_bytes > part.total:
                part.restart()
            raise TransientError(found)
        if self.remote.probe() != part.validator:
            part.restart()
            raise TransientError("another version of the file after the download than before")

    def _publish(self, part: PartialDownload, *, fetch_seconds: float) -> Copy:
        sha256 = part.sha256
        known = _Known(
            url=redact(self.source.url),
            url_sha256=_url_sha256(self.source),
            validator=part.validator,
            sha256=sha256,
            num_bytes=part.num_bytes,
        )
        name = _file_name(self.source)
        with new_folder(self.folder / sha256[:16]) as temporary:
            manifest = Manifest(
                recipe=Recipe(
                    stage="raw", version=RAW_VERSION, config={}, parents={"content": sha256}
                ),
                dataset=self.store.name,
                partition=self.source.key,
                counts={"num_bytes": known.num_bytes},
                files={name: FileEntry(num_bytes=known.num_bytes, sha256=sha256)},
            )
            run = {"url": known.url, "fetch_seconds": round(fetch_seconds, 3)}
            write_manifest(temporary, manifest, run=run)
            part.move_to(temporary / name)
        with new_file(self.folder / ".source.json") as path:
            path.write_text(json.dumps(asdict(known), indent=1) + "\n")
        return _copy(known, self.source, self.folder, is_new=True)


def _with_retries(fetching: _Fetching, retry: Retry) -> Copy:
    num_tries, wait_seconds = 0, retry.first_wait_seconds
    while True:
        before = fetching.furthest
        try:
            return fetching.attempt()
        except TransientError as error:
            if fetching.furthest >= before + BLOCK_BYTES:
                num_tries, wait_seconds = 0, retry.first_wait_seconds
            num_tries += 1
            if num_tries >= retry.num_tries:
                raise _gave_up(fetching, num_tries, error) from None
            wait = max(wait_seconds, error.wait_seconds)
            where = redact(fetching.source.url)
            _log.warning("%s: %s; trying again in %.1f s", where, error, wait)
            time.sleep(wait)
            wait_seconds = min(2 * wait_seconds, 30.0)


def _gave_up(fetching: _Fetching, num_tries: int, error: TransientError) -> RawFileError:
    remedy = "run again when the server answers; what has arrived is kept"
    if fetching.known is not None:
        copy = _copy(fetching.known, fetching.source, fetching.folder, is_new=False)
        remedy = (
            f"run again when the server answers, or move the earlier copy {copy.path} out of the "
            "store and name it under raw.files"
        )
    return remote_error(fetching.source.url, f"{error}, {num_tries} times in a row", remedy=remedy)


def _copy_offline(known: _Known | None, source: RawSource, folder: Path) -> Copy:
    if known is None:
        raise remote_error(
            source.url,
            "none",
            expected=f"a complete copy in {folder}, as asked not to use the network",
            remedy="fetch it once without `offline`",
        )
    return _copy(known, source, folder, is_new=False)


def _copy(known: _Known, source: RawSource, folder: Path, *, is_new: bool) -> Copy:
    return Copy(
        path=folder / known.sha256[:16] / _file_name(source),
        num_bytes=known.num_bytes,
        sha256=known.sha256,
        is_new=is_new,
    )


def _file_name(source: RawSource) -> str:
    name = source.key.rpartition("/")[2]
    return f"_{name}" if name in {MANIFEST_NAME, RUN_NAME} else name


def _url_sha256(source: RawSource) -> str:
    """Return the sha256 of the URL with its query, which names content, but without userinfo."""
    text = source.url
    if is_url(text):
        parts = split_url(text)
        text = f"{parts.origin}{parts.path}?{parts.query}"
    return hashlib.sha256(text.encode()).hexdigest()


def _read_known(folder: Path, source: RawSource) -> _Known | None:
    """Return what is remembered of the newest copy; None if it is of another URL or incomplete."""
    try:
        fields: dict[str, Any] = json.loads((folder / ".source.json").read_text())
        validator = Validator(**fields.pop("validator"))
        known = _Known(validator=validator, **fields)
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None  # without it the file is downloaded again
    is_usable = known.url_sha256 == _url_sha256(source) and is_intact(folder / known.sha256[:16])
    return known if is_usable else None


def _remote_file(source: RawSource) -> RemoteFile:
    if source.url.lower().startswith(("http://", "https://")):
        from tokflow.raw.web import WebFile  # and with it urllib3, ssl: 0.1 s

        return WebFile(source.url, source.named_hosts)
    from tokflow.raw.object_store import StoredObject

    return StoredObject(source.url)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time pass; the others wait and then find what it fetched."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:  # some cluster file systems have no locks
            _log.warning(
                "%s: expected a file system with locks, found %s; do not let two runs fetch this "
                "file at once",
                path,
                error.strerror or error,
            )
        yield

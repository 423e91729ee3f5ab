"""Fetch a file from elsewhere into the store, once for each version of it.

raw/<key>/<sha256[:16]>/<file name>, _tokflow/        a complete copy
raw/<key>/.source.json                                the newest copy, and by what it is known
raw/<key>/.part-<URL>, .part-<URL>.json               a download under way
raw/<key>/.blocks-<identity[:16]>/<file name>/        what was read of a version; see `lazy`
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

from tokflow.errors import FetchError, RawFileError
from tokflow.raw.blocks import Blocks
from tokflow.raw.hashes import Progress
from tokflow.raw.lazy import LEAST_BYTES, LazyPath, RemoteVersion
from tokflow.raw.listing import RawSource
from tokflow.raw.partial import BLOCK_BYTES, PartialDownload
from tokflow.raw.remote import RemoteFile, TransientError, Validator, remote_error
from tokflow.raw.retries import Retries
from tokflow.shown import redact
from tokflow.store.atomic import new_file, new_folder
from tokflow.store.listed_files import is_intact
from tokflow.store.manifest import (
    OWN_FOLDER,
    FileEntry,
    Manifest,
    Recipe,
    write_manifest,
)
from tokflow.store.remote.places import shown
from tokflow.store.stored_outputs import BLOCKS_PREFIX
from tokflow.store.urls import is_url, split_url

RAW_VERSION = 1
NEWEST_NAME = ".source.json"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """A file in the store, whole, or a `LazyPath` to what is fetched when it is read."""

    path: Path
    num_bytes: int
    """Size of the whole file."""
    sha256: str
    """Of the content; of a `LazyPath` the fingerprint of the version."""
    validator: Validator
    """The version of the file that it is a copy of."""
    is_new: bool
    """It was hashed on its way here just now, so there is no need to read it again."""

    @property
    def is_lazy(self) -> bool:
        """True if it is fetched as it is read."""
        return isinstance(self.path, LazyPath)


def fetch(
    source: RawSource,
    *,
    store: Path,
    progress: Progress | None = None,
    offline: bool = False,
    as_read: bool = False,
    streamed: bool = False,
) -> Copy:
    """Return the copy in `store` of the version of the file that is at its URL now.

    The server is asked once which version that is (ETag, Last-Modified and size; the size alone
    if it tells no more; always downloaded if it tells nothing), and only another version is
    downloaded, to a folder of its own. A download that broke off, or whose process was killed,
    goes on where it was if the version is still the same and the server can. With `offline` the
    newest copy is taken without asking; of a file of the hub, the one that was listed.

    With `as_read` nothing is downloaded but what is read later, of a file of more than
    `LEAST_BYTES` whose versions can be told apart and of which no whole copy is there. With
    `streamed`, as where the store is elsewhere, too, that is so of a file of any size, nothing of
    it is kept here, a version that is listed is not asked for, and one that is known is read even
    with `offline`.

    Raises: RawFileError if the server cannot be asked, although a copy may be there: the caller
    would not know that it is outdated.
    """
    folder = store / "raw" / source.key
    mode = _Mode(is_offline=offline, as_read=as_read or streamed, is_streamed=streamed)
    if streamed and (version := source.hub.probe() if source.hub else source.version) is not None:
        return _lazy_copy(folder, source, version, mode)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / ".lock"):
        newest = _read_newest(folder, source, mode)
        if not offline or (streamed and newest is None):
            remote = _remote_file(source, mode)
            fetching = _Fetching(source, store, folder, remote, newest, progress, mode)
            return fetching.until_it_is_there()
        if newest is None:
            raise _not_here(source, folder)
        return newest


def _not_here(source: RawSource, folder: Path) -> RawFileError:
    return remote_error(
        source.url,
        "none",
        expected=f"a complete copy in {shown(folder)}, as asked not to use the network",
        remedy="fetch it once without `offline`",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mode:
    """How much of a file is fetched, and when; see `fetch`."""

    is_offline: bool
    as_read: bool
    is_streamed: bool


@dataclass(slots=True)
class _Fetching:
    """One file, which is tried until it is there."""

    source: RawSource
    store: Path
    folder: Path
    remote: RemoteFile
    newest: Copy | None
    progress: Progress | None
    mode: _Mode
    furthest: int = field(default=0, init=False)
    """Most bytes that were on disk after a try."""

    def until_it_is_there(self) -> Copy:
        retries = Retries(self.source.url, self._gave_up)
        while True:
            before = self.furthest
            try:
                return self.attempt()
            except TransientError as error:
                retries.wait(error, has_advanced=self.furthest >= before + BLOCK_BYTES)

    def attempt(self) -> Copy:
        if self.newest is not None and _is_listed(self.newest.validator, self.source.version):
            return self.newest
        validator = self.remote.probe()
        # Where nothing is told no two answers can be compared, and the file is read each time.
        if self.newest is not None and self.newest.validator == validator != Validator():
            return self.newest
        least_bytes = -1 if self.mode.is_streamed else LEAST_BYTES
        if self.mode.as_read and validator.is_strong and (validator.num_bytes or 0) > least_bytes:
            copy = self._lazy_copy(validator)
            _write_newest(self.folder, self.source, copy)
            return copy
        if self.mode.is_offline:
            raise _not_here(self.source, self.folder)
        started = time.monotonic()
        path = self.folder / f".part-{_url_sha256(self.source)[:16]}"
        with PartialDownload.at(path, validator) as partial:
            try:
                self._download(partial)
            finally:
                self.furthest = max(self.furthest, partial.num_bytes)
        return self._publish(partial, fetch_seconds=time.monotonic() - started)

    def _download(self, partial: PartialDownload) -> None:
        self._take_blocks(partial)
        if not partial.is_complete:
            with self.remote.open_at(partial.num_bytes) as body:
                if body.offset != partial.num_bytes:
                    partial.restart()
                partial.total = body.num_bytes
                while block := body.read(BLOCK_BYTES):
                    partial.append(block)
                    if self.progress is not None:
                        self.progress(partial.num_bytes, partial.total)
        if partial.total is not None and partial.num_bytes != partial.total:
            found = f"{partial.num_bytes:,} of {partial.total:,} bytes"
            if partial.num_bytes > partial.total:
                partial.restart()
            raise TransientError(found)
        if self.remote.probe() != partial.validator:
            partial.restart()
            raise TransientError("another version of the file after the download than before")
        promised = None if self.source.hub is None else self.source.hub.sha256
        if promised not in (None, partial.sha256):
            found = f"sha256 {partial.sha256[:16]}… where the hub says {promised[:16]}…"
            partial.restart()
            raise TransientError(found)

    def _take_blocks(self, partial: PartialDownload) -> None:
        """Append what was read of this version before, up to the first byte that was not."""
        blocks = Blocks(self._lazy_copy(partial.validator).path)
        while (block := blocks.find(partial.num_bytes)) is not None:
            partial.append(blocks.read(block, partial.num_bytes, block.stop))
            partial.total = partial.validator.num_bytes

    def _lazy_copy(self, validator: Validator) -> Copy:
        return _lazy_copy(self.folder, self.source, validator, self.mode)

    def _publish(self, partial: PartialDownload, *, fetch_seconds: float) -> Copy:
        sha256, num_bytes, name = partial.sha256, partial.num_bytes, _file_name(self.source)
        folder = self.folder / sha256[:16]
        recipe = Recipe(stage="raw", version=RAW_VERSION, config={}, parents={"content": sha256})
        with new_folder(folder) as temporary:
            manifest = Manifest(
                recipe=recipe,
                dataset=self.store.name,
                partition=self.source.key,
                counts={"num_bytes": num_bytes},
                details={} if self.source.hub is None else {"origin": self.source.hub.origin},
                files={name: FileEntry(num_bytes=num_bytes, sha256=sha256)},
            )
            run = {"url": redact(self.source.url), "fetch_seconds": round(fetch_seconds, 3)}
            write_manifest(temporary, manifest, run=run)
            partial.move_to(temporary / name)
        copy = Copy(
            path=folder / name,
            num_bytes=num_bytes,
            sha256=sha256,
            validator=partial.validator,
            is_new=True,
        )
        _write_newest(self.folder, self.source, copy)
        return copy

    def _gave_up(self, found: str) -> FetchError:
        remedy = "run again when the server answers; the bytes that arrived are kept"
        if self.newest is not None:
            remedy = (
                "run again when the server answers, or move the earlier copy "
                f"{self.newest.path} out of the store and name it under raw.files"
            )
        return FetchError(**remote_error(self.source.url, found, remedy=remedy).fields())


def _is_listed(known: Validator, listed: Validator | None) -> bool:
    """Return whether a version is the one that a listing tells."""
    if listed is None:
        return False
    return (known.bare().etag, known.num_bytes) == (listed.etag, listed.num_bytes)


def _read_newest(folder: Path, source: RawSource, mode: _Mode) -> Copy | None:
    """Return the newest copy; None if it is of another URL, not remembered, or incomplete and not
    to be fetched `as_read`."""
    try:
        fields: dict[str, Any] = json.loads((folder / NEWEST_NAME).read_text())
        if fields["url_sha256"] != _url_sha256(source):
            return None
        validator = Validator(**fields["validator"])
        if source.hub is not None and validator != source.hub.probe():
            return None  # of another version than the one that is listed
        if source.version is not None and not _is_listed(validator, source.version):
            return None
        if fields["sha256"] is None:
            return _lazy_copy(folder, source, validator, mode) if mode.as_read else None
        copy = Copy(
            path=folder / fields["sha256"][:16] / _file_name(source),
            num_bytes=fields["num_bytes"],
            sha256=fields["sha256"],
            validator=validator,
            is_new=False,
        )
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None  # without it the file is downloaded again
    return copy if is_intact(copy.path.parent) else None


def _write_newest(folder: Path, source: RawSource, copy: Copy) -> None:
    fields = {
        "url": redact(source.url),
        "url_sha256": _url_sha256(source),
        "validator": asdict(copy.validator),
        "sha256": None if copy.is_lazy else copy.sha256,
        "num_bytes": copy.num_bytes,
        **({} if source.hub is None else {"origin": source.hub.origin}),
    }
    with new_file(folder / NEWEST_NAME) as path:
        path.write_text(json.dumps(fields, indent=1) + "\n")


def _lazy_copy(folder: Path, source: RawSource, validator: Validator, mode: _Mode) -> Copy:
    known = validator.least() if mode.is_streamed else validator
    version = RemoteVersion(
        remote=_remote_file(source, mode, known if mode.is_streamed else None),
        url=source.url,
        url_sha256=_url_sha256(source),
        validator=known,
        sha256=None if source.hub is None else source.hub.sha256,
        is_offline=mode.is_offline and not mode.is_streamed,
        is_streamed=mode.is_streamed,
    )
    fingerprint = version.fingerprint
    return Copy(
        path=LazyPath.of(
            folder / f"{BLOCKS_PREFIX}{fingerprint[:16]}" / _file_name(source), version
        ),
        num_bytes=version.num_bytes,
        sha256=fingerprint,
        validator=validator,
        is_new=True,
    )


def _file_name(source: RawSource) -> str:
    name = source.key.rpartition("/")[2]
    return f"_{name}" if name == OWN_FOLDER else name


def _url_sha256(source: RawSource) -> str:
    """Return the sha256 of the URL with its query, which names content, but without userinfo.

    A guessed password could be checked against it.
    """
    text = source.url
    if is_url(text):
        parts = split_url(text)
        text = f"{parts.origin}{parts.path}?{parts.query}"
    return hashlib.sha256(text.encode()).hexdigest()


def _remote_file(source: RawSource, mode: _Mode, version: Validator | None = None) -> RemoteFile:
    """Return the file at its URL; `version`: the one of which ranges are to be read."""
    if source.hub is not None:
        return source.hub
    if source.url.lower().startswith(("http://", "https://")):
        from tokflow.raw.web import WebFile  # and with it urllib3, ssl: 0.1 s

        return WebFile(source.url, source.named_hosts)
    from tokflow.raw.object_store import StoredObject

    return StoredObject(source.url, version, is_listed=mode.is_streamed)


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

"""Fetch a remote file into the store, once for each version of it.

raw/<key>/<sha256[:16]>/<file name>, _tokflow/        a complete copy
raw/<key>/.source.json                                the newest copy, and by what it is known
raw/<key>/.blocks-<fingerprint[:16]>/<file name>/     what is kept of a version; see `blocks`
raw/<key>/.lock                                       held by the process that downloads
"""

import fcntl
import hashlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tokflow.errors import FetchError, RawFileError
from tokflow.raw.blocks import BLOCK_BYTES, Blocks, Download
from tokflow.raw.hashes import HashedFile, Progress, hash_files, stamp_of
from tokflow.raw.listing import RawSource
from tokflow.raw.remote import Access, TransientError, Validator, fetch_error, remote_error
from tokflow.raw.remote_file import RemoteFile, RemoteVersion
from tokflow.raw.retries import Retries
from tokflow.shown import redact
from tokflow.store.atomic import new_file, new_folder
from tokflow.store.listed_files import Stamp, is_intact
from tokflow.store.manifest import OWN_FOLDER, FileEntry, Manifest, Recipe, write_manifest
from tokflow.store.store import Store
from tokflow.store.stored_outputs import BLOCKS_PREFIX
from tokflow.store.urls import is_url, split_url

RAW_VERSION = 1
NEWEST_NAME = ".source.json"
LEAST_BYTES = 2**20
"""A file that is no larger is fetched whole, but where nothing of it is kept."""

_ASKED_AT_ONCE = 16
"""Servers that are asked at the same time which version of a file is there."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fetching:
    """How the remote files of a dataset are fetched."""

    store: Path
    """The dataset's folder."""
    is_streamed: bool = False
    """Nothing of a file of any size is kept here, as where the store is remote, too: a version that
    is listed is not asked for, and one that is known is read even `offline`."""
    progress: Progress | None = None
    offline: bool = False
    rehash: bool = False
    """Read every copy, whatever is remembered of it."""
    as_read: bool = False
    """Fetch nothing but what is read later, of a file of more than `LEAST_BYTES` whose versions can
    be told apart and of which no whole copy is there."""
    within: Store | None = None
    """The store that the folder is in, if it is not one of this disk."""

    @property
    def keeper(self) -> Store:
        """The store that whole copies are put into."""
        return self.within or Store(self.store)

    def all_hashed(self, sources: Sequence[RawSource]) -> dict[str, HashedFile]:
        """Return files by key, one after the other; servers are asked several at once where nothing
        is fetched."""
        asked = [of for of in sources if self.is_streamed and of.may_differ]
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            files = dict(zip([of.key for of in asked], pool.map(self.hashed, asked), strict=True))
        return files | {of.key: self.hashed(of) for of in sources if of.key not in files}

    def hashed(self, source: RawSource) -> HashedFile:
        """Return what `fetch` finds, with a copy of an earlier run read if it was changed since.

        Raises: as `fetch`; RawFileError if the copy is damaged.
        """
        copy = self.fetch(source)
        if isinstance(copy.path, RemoteFile):
            return HashedFile(copy.path, Stamp(copy.num_bytes, 0, 0, 0), copy.sha256)
        if copy.is_new:
            return HashedFile(copy.path, stamp_of(copy.path), copy.sha256)
        for is_anew in (self.rehash, True):  # a wrong sha256 may only be remembered of it
            found = hash_files(
                [copy.path], store=self.store, progress=self.progress, rehash=is_anew
            )
            hashed = found[copy.path]
            if hashed.sha256 == copy.sha256:
                return hashed
        raise RawFileError(
            where=copy.path,
            expected=f"{copy.num_bytes:,} bytes with sha256 {copy.sha256[:16]}…",
            found=f"{hashed.stamp.num_bytes:,} bytes with sha256 {hashed.sha256[:16]}…",
            remedy=f"delete the folder {copy.path.parent} and run again to fetch it anew",
        )

    def fetch(self, source: RawSource) -> "Copy":
        """Return the copy of the version that is at a URL now, or the `RemoteFile` of it.

        The server is asked once which version that is (ETag, Last-Modified and size; the size alone
        if it tells no more; always downloaded if it tells nothing), and only another version is
        downloaded, to a folder of its own. A download that broke off, or whose process was killed,
        goes on where it was if the version is still the same and the server can. With `offline` the
        newest copy is taken without asking; of a file of the hub, the one that was listed.

        Raises: RawFileError if the server cannot be asked, although a copy may be there: the caller
        would not know that it is outdated.
        """
        file = _File(self, source)
        if self.is_streamed and (listed := file.listed) is not None:
            return file.remote(listed)
        file.folder.mkdir(parents=True, exist_ok=True)
        with _locked(file.folder / ".lock"):
            file.read_newest()
            if not self.offline or (self.is_streamed and file.newest is None):
                return file.until_it_is_there()
            if file.newest is None:
                raise file.not_here()
            return file.newest


class Copy(NamedTuple):
    """A file in the store, whole, or a `RemoteFile`."""

    path: Path
    num_bytes: int
    """Size of the whole file."""
    sha256: str
    """Of the content; of a `RemoteFile` the fingerprint of the version."""
    validator: Validator
    """The version of the file that it is a copy of."""
    is_new: bool
    """It was hashed on its way here just now, so there is no need to read it again."""


class _File:
    """One file, which is tried until it is there."""

    def __init__(self, how: Fetching, source: RawSource) -> None:
        self._how = how
        self._source = source
        self.folder = how.store / "raw" / source.key
        self.newest: Copy | None = None
        """The newest copy, if it is of this URL and may be used."""
        self.listed = source.version if source.hub is None else source.hub.probe()
        self._url_sha256 = _url_sha256(source.url)
        name = source.key.rpartition("/")[2]
        self._name = f"_{name}" if name == OWN_FOLDER else name
        self._furthest = 0
        """Most bytes that were on disk after a try."""

    def remote(self, found: Validator) -> Copy:
        """Return a version as a file that is fetched as it is read."""
        is_streamed, hub = self._how.is_streamed, self._source.hub
        known = found.least() if is_streamed else found
        version = RemoteVersion(
            access=_access(self._source, known, is_listed=is_streamed),
            url=self._source.url,
            url_sha256=self._url_sha256,
            validator=known,
            sha256=None if hub is None else hub.sha256,
            is_offline=self._how.offline and not is_streamed,
            is_streamed=is_streamed,
        )
        digits = version.fingerprint[:16]
        path = RemoteFile.of(self.folder / f"{BLOCKS_PREFIX}{digits}" / self._name, version)
        return Copy(path, version.num_bytes, version.fingerprint, found, is_new=True)

    def read_newest(self) -> None:
        """Find the newest copy, unless it is incomplete and nothing is fetched as it is read."""
        how, source = self._how, self._source
        try:
            fields: dict[str, Any] = json.loads((self.folder / NEWEST_NAME).read_text())
            validator, sha256 = Validator(**fields["validator"]), fields["sha256"]
            is_of_commit = source.hub is None or validator == self.listed
            if fields["url_sha256"] != self._url_sha256 or not is_of_commit:
                return
            if source.version is not None and not self._is_listed(validator):
                return
            if sha256 is None:
                is_read_later = how.as_read or how.is_streamed
                self.newest = self.remote(validator) if is_read_later else None
            elif is_intact(folder := self.folder / sha256[:16]):
                path = folder / self._name
                self.newest = Copy(path, fields["num_bytes"], sha256, validator, is_new=False)
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return  # without it the file is downloaded again

    def _is_listed(self, known: Validator) -> bool:
        """Return whether a version is the one that the listing of an object store tells."""
        listed, etag = self._source.version, known.bare().etag
        return listed is not None and (etag, known.num_bytes) == (listed.etag, listed.num_bytes)

    def not_here(self) -> RawFileError:
        """Return the error for a file that would have to be downloaded."""
        folder = self._how.keeper.shown(self.folder)
        return remote_error(
            self._source.url,
            "none",
            expected=f"a complete copy in {folder}, as asked not to use the network",
            remedy="fetch it once without `offline`",
        )

    def until_it_is_there(self) -> Copy:
        """Return the version that is there now, as often as a server breaks off."""
        access = _access(self._source, None, is_listed=self._how.is_streamed)
        retries = Retries(self._source.url, self._gave_up)
        while True:
            before = self._furthest
            try:
                return self._attempt(access)
            except TransientError as error:
                retries.wait(error, has_advanced=self._furthest >= before + BLOCK_BYTES)

    def _attempt(self, access: Access) -> Copy:
        how, newest = self._how, self.newest
        if newest is not None and self._is_listed(newest.validator):
            return newest
        validator = access.probe()
        # Where nothing is told no two answers can be compared, and the file is read each time.
        if newest is not None and newest.validator == validator != Validator():
            return newest
        remote, least_bytes = self.remote(validator), -1 if how.is_streamed else LEAST_BYTES
        is_read_later = (how.as_read or how.is_streamed) and validator.is_strong
        if is_read_later and (validator.num_bytes or 0) > least_bytes:
            self._write_newest(remote)
            return remote
        if how.offline:
            raise self.not_here()
        started = time.monotonic()
        with Download(Blocks(remote.path), validator) as download:
            try:
                for _ in download.receive(access):
                    if how.progress is not None:
                        how.progress(download.num_bytes, download.total)
                self._check(download, access)
            finally:
                self._furthest = max(self._furthest, download.num_bytes)
        return self._publish(download, fetch_seconds=time.monotonic() - started)

    def _check(self, download: Download, access: Access) -> None:
        """Raise TransientError if what arrived is not one version, the one that was promised."""
        found, hub = None, self._source.hub
        if access.probe() != download.version:
            found = "another version of the file after the download than before"
        elif hub is not None and hub.sha256 not in (None, download.sha256):
            found = f"sha256 {download.sha256[:16]}… where the hub says {hub.sha256[:16]}…"
        if found is not None:
            download.restart()
            raise TransientError(found)

    def _publish(self, download: Download, *, fetch_seconds: float) -> Copy:
        sha256, num_bytes, hub = download.sha256, download.num_bytes, self._source.hub
        folder = self.folder / sha256[:16]
        recipe = Recipe(stage="raw", version=RAW_VERSION, config={}, parents={"content": sha256})
        with new_folder(folder, self._how.keeper) as temporary:
            manifest = Manifest(
                recipe=recipe,
                dataset=self._how.store.name,
                partition=self._source.key,
                counts={"num_bytes": num_bytes},
                details={} if hub is None else {"origin": hub.origin},
                files={self._name: FileEntry(num_bytes=num_bytes, sha256=sha256)},
            )
            run = {"url": redact(self._source.url), "fetch_seconds": round(fetch_seconds, 3)}
            write_manifest(temporary, manifest, run=run)
            download.move_to(temporary / self._name)
        copy = Copy(folder / self._name, num_bytes, sha256, download.version, is_new=True)
        self._write_newest(copy)
        return copy

    def _write_newest(self, copy: Copy) -> None:
        hub = self._source.hub
        fields = {
            "url": redact(self._source.url),
            "url_sha256": self._url_sha256,
            "validator": asdict(copy.validator),
            "sha256": None if isinstance(copy.path, RemoteFile) else copy.sha256,
            "num_bytes": copy.num_bytes,
            **({} if hub is None else {"origin": hub.origin}),
        }
        with new_file(self.folder / NEWEST_NAME) as path:
            path.write_text(json.dumps(fields, indent=1) + "\n")

    def _gave_up(self, found: str) -> FetchError:
        remedy = "run again when the server answers; the bytes that arrived are kept"
        if self.newest is not None:
            remedy = (
                "run again when the server answers, or move the earlier copy "
                f"{self.newest.path} out of the store and name it under raw.files"
            )
        return fetch_error(self._source.url, found, remedy=remedy)


def _url_sha256(url: str) -> str:
    """Return the sha256 of the URL with its query, which names content, but without userinfo.

    A guessed password could be checked against it.
    """
    if is_url(url):
        parts = split_url(url)
        url = f"{parts.origin}{parts.path}?{parts.query}"
    return hashlib.sha256(url.encode()).hexdigest()


def _access(source: RawSource, version: Validator | None, *, is_listed: bool) -> Access:
    """Return the way to a file; `version`: the one of which ranges are to be read; `is_listed`:
    versions are told as a listing tells them."""
    if source.hub is not None:
        return source.hub
    if source.url.lower().startswith(("http://", "https://")):
        from tokflow.raw.web import WebFile  # and with it urllib3, ssl: 0.1 s

        return WebFile(source.url, source.named_hosts)
    from tokflow.raw.object_store import StoredObject

    return StoredObject(source.url, version, is_listed=is_listed)


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

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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tokflow.errors import FetchError, RawFileError
from tokflow.raw.blocks import BLOCK_BYTES, Blocks, Download
from tokflow.raw.hashes import HashedFile, Progress, hash_files, stamp_of
from tokflow.raw.listing import ASKED_AT_ONCE, RawSource
from tokflow.raw.remote import (
    Access,
    RemoteVersion,
    Retries,
    TransientError,
    Validator,
    fetch_error,
    remote_error,
)
from tokflow.raw.remote_file import RemoteFile
from tokflow.shown import redact
from tokflow.store.atomic import new_file, new_folder
from tokflow.store.listed_files import Stamp, is_intact
from tokflow.store.manifest import OWN_FOLDER, FileEntry, Manifest, Recipe, write_manifest
from tokflow.store.segments import BLOCKS_PREFIX
from tokflow.store.store import Store
from tokflow.store.urls import is_url, split_url

RAW_VERSION = 1
NEWEST_NAME = ".source.json"
LEAST_BYTES = 2**20
"""A file that is no larger is fetched whole, but where nothing of it is kept."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fetching:
    """How the remote files of a dataset are fetched."""

    store: Path
    """The dataset's folder."""
    within: Store
    """The store that the folder is in. Of a file of any size it keeps nothing where it is remote,
    too: a version that is listed is not asked for."""
    progress: Progress | None = None
    offline: bool = False
    rehash: bool = False
    """Read every copy, whatever is remembered of it."""
    as_read: bool = False
    """Fetch nothing but what is read later, of a file of more than `LEAST_BYTES` whose versions can
    be told apart and of which no whole copy is there."""

    @property
    def is_streamed(self) -> bool:
        """True if nothing of a file of any size is kept here."""
        return not self.within.keeps_raw_files

    def all_hashed(self, sources: Sequence[RawSource]) -> dict[str, HashedFile]:
        """Return files by key, one after the other; servers are asked several at once where nothing
        is fetched."""
        asked = [of for of in sources if self.is_streamed and of.may_differ]
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
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
        # One process at a time passes; the others wait, and then find what it fetched.
        with (file.folder / ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:  # some cluster file systems have no locks
                _log.warning(
                    "%s: expected a file system with locks, found %s; do not let two runs fetch "
                    "this file at once",
                    lock.name,
                    error.strerror or error,
                )
            return file.until_it_is_there()


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
        self._newest: Copy | None = None
        self._is_in_ranges = how.as_read or how.is_streamed
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
            access=_access(self._source, known),
            url=self._source.url,
            url_sha256=self._url_sha256,
            validator=known,
            sha256=None if hub is None else hub.sha256,
            is_kept=not is_streamed,
        )
        digits = version.fingerprint[:16]
        path = RemoteFile.of(self.folder / f"{BLOCKS_PREFIX}{digits}" / self._name, version)
        return Copy(path, version.num_bytes, version.fingerprint, found, is_new=True)

    def _read_newest(self) -> Copy | None:
        """Return the newest copy, if it is of this URL and may be used; one that is not whole where
        files are fetched as they are read."""
        try:
            fields: dict[str, Any] = json.loads((self.folder / NEWEST_NAME).read_text())
            validator, sha256 = Validator(**fields["validator"]), fields["sha256"]
            num_bytes, folder = fields["num_bytes"], self.folder / str(sha256)[:16]
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None  # without it the file is downloaded again
        if fields.get("url_sha256") != self._url_sha256 or self.listed not in (None, validator):
            return None
        if sha256 is None:
            return self.remote(validator) if self._is_in_ranges else None
        path = folder / self._name
        return Copy(path, num_bytes, sha256, validator, is_new=False) if is_intact(folder) else None

    def until_it_is_there(self) -> Copy:
        """Return the version that is there now, as often as a server breaks off."""
        self._newest = self._read_newest()
        access = _access(self._source, None)
        retries = Retries(self._source.url, self._gave_up)
        while True:
            before = self._furthest
            try:
                return self._attempt(access)
            except TransientError as error:
                retries.wait(error, has_advanced=self._furthest >= before + BLOCK_BYTES)

    def _attempt(self, access: Access) -> Copy:
        how, newest = self._how, self._newest
        is_asked = not how.offline or (how.is_streamed and newest is None)
        if newest is not None and (not is_asked or newest.validator == self._source.version):
            return newest
        validator = access.probe() if is_asked else Validator()
        # Where nothing is told no two answers can be compared, and the file is read each time.
        if newest is not None and newest.validator == validator != Validator():
            return newest
        remote, least_bytes = self.remote(validator), -1 if how.is_streamed else LEAST_BYTES
        if self._is_in_ranges and validator.is_strong and remote.num_bytes > least_bytes:
            self._write_newest(remote)
            return remote
        if how.offline:
            raise remote_error(
                self._source.url,
                "none",
                expected=f"a complete copy in {how.within.shown(self.folder)}, as asked not to use "
                "the network",
                remedy="fetch it once without `offline`",
            )
        with Download(Blocks(remote.path), validator) as download:
            self._receive(download, access)
        return self._publish(download)

    def _receive(self, download: Download, access: Access) -> None:
        """Raise TransientError if what arrives is not one version, the one that was promised."""
        progress, hub = self._how.progress, self._source.hub
        try:
            for _ in download.receive(access):
                if progress is not None:
                    progress(download.num_bytes, download.total)
        finally:
            self._furthest = max(self._furthest, download.num_bytes)
        found = None
        if access.probe() != download.version:
            found = "another version of the file after the download than before"
        elif hub is not None and hub.sha256 not in (None, download.sha256):
            found = f"sha256 {download.sha256[:16]}… where the hub says {hub.sha256[:16]}…"
        if found is not None:
            download.restart()
            raise TransientError(found)

    def _publish(self, download: Download) -> Copy:
        sha256, num_bytes, hub = download.sha256, download.num_bytes, self._source.hub
        folder = self.folder / sha256[:16]
        recipe = Recipe(stage="raw", version=RAW_VERSION, config={}, parents={"content": sha256})
        with new_folder(folder, self._how.within) as temporary:
            manifest = Manifest(
                recipe=recipe,
                dataset=self._how.store.name,
                partition=self._source.key,
                counts={"num_bytes": num_bytes},
                details={} if hub is None else {"origin": hub.origin},
                files={self._name: FileEntry(num_bytes=num_bytes, sha256=sha256)},
            )
            write_manifest(temporary, manifest, run={"url": redact(self._source.url)})
            download.move_to(temporary / self._name)
        copy = Copy(folder / self._name, num_bytes, sha256, download.version, is_new=True)
        self._write_newest(copy)
        return copy

    def _write_newest(self, copy: Copy) -> None:
        fields = {
            "url": redact(self._source.url),
            "url_sha256": self._url_sha256,
            "validator": asdict(copy.validator),
            "sha256": None if isinstance(copy.path, RemoteFile) else copy.sha256,
            "num_bytes": copy.num_bytes,
            **({} if self._source.hub is None else {"origin": self._source.hub.origin}),
        }
        with new_file(self.folder / NEWEST_NAME) as path:
            path.write_text(json.dumps(fields, indent=1) + "\n")

    def _gave_up(self, found: str) -> FetchError:
        remedy = "run again when the server answers; the bytes that arrived are kept"
        if self._newest is not None:
            remedy = (
                "run again when the server answers, or move the earlier copy "
                f"{self._newest.path} out of the store and name it under raw.files"
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


def _access(source: RawSource, version: Validator | None) -> Access:
    """Return the way to a file; `version`: the one of which ranges are to be read."""
    if source.hub is not None:
        return source.hub
    if source.url.lower().startswith(("http://", "https://")):
        from tokflow.raw.web import WebFile  # and with it urllib3, ssl: 0.1 s

        return WebFile(source.url, source.named_hosts)
    from tokflow.raw.buckets import StoredObject

    return StoredObject(source.url, version)

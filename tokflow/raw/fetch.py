"""Raw files as a dataset reads them: hashed where they are on this machine; otherwise fetched into
the store, once for each version, or left to be fetched as they are read.

    raw/<key>/<sha256[:16]>/<file name>, _tokflow/        a complete copy
    raw/<key>/.source.json                                the newest copy, and its version
    raw/<key>/.blocks-<fingerprint[:16]>/<file name>/     blocks of a version; see `Blocks`
    raw/<key>/.lock                                       held by the process that downloads
"""

import fcntl
import hashlib
import json
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from tokflow.errors import FetchError, RawFileError
from tokflow.formatting import redact
from tokflow.raw.files import RawFile, hash_files
from tokflow.raw.hashes import Progress, stamp_of
from tokflow.raw.remote_file import Blocks, RemoteFile
from tokflow.raw.remote_version import (
    Access,
    RemoteVersion,
    Retries,
    TransientError,
    Validator,
    fetch_error,
    read_all,
    remote_error,
)
from tokflow.raw.sources import ASKED_AT_ONCE, RawSource
from tokflow.store.atomic import BLOCKS_PREFIX, new_file, new_folder
from tokflow.store.listed_files import Stamp
from tokflow.store.manifest import OWN_FOLDER, FileEntry, Manifest, Recipe, write_manifest
from tokflow.store.store import Store
from tokflow.store.urls import is_url, split_url

RAW_VERSION = 1
NEWEST_NAME = ".source.json"
LEAST_BYTES = 2**20
"""A file that is no larger is fetched whole, unless nothing of it is kept."""

_log = logging.getLogger(__name__)


def read_raw_files(
    sources: Iterable[RawSource],
    *,
    store: Path,
    of: Store | None = None,
    progress: Progress | None = None,
    offline: bool = False,
    rehash: bool = False,
    as_read: bool = False,
    reads_once: bool = False,
) -> dict[str, RawFile]:
    """Return the raw files by key, in the order of `sources`: hashed if they are of this machine,
    fetched to `store`, the dataset's folder in the store `of`, if they are not.

    A local file that is unchanged since it was hashed is not read again; a remote one of which
    the newest version is in the store costs one question to its server, or none with `offline`.
    With `rehash` every file on this disk is read, whatever is remembered of it; with `reads_once`
    none is before its documents are. With `as_read` only that is fetched of a large remote file
    which is read later. If the store is remote, nothing is fetched ahead of files whose versions
    can be distinguished. Local files are hashed in parallel, and `progress` then counts the bytes
    of all that were not hashed before; remote files are fetched one after the other, and it counts
    those of each; where nothing is fetched, servers are asked several at once.

    Raises: RawFileError if one is missing, unreadable, changes meanwhile, cannot be fetched, or
    if its copy in the store is damaged.
    """
    sources = list(sources)
    local = {source.key: Path(source.url) for source in sources if source.is_local}
    files = hash_files(local, store=store, progress=progress, rehash=rehash, reads_once=reads_once)
    of = of or Store(store)

    def fetch(source: RawSource) -> RawFile:
        return _File(source, store, of, progress, offline, rehash, as_read).fetch()

    asked = [source for source in sources if source.may_differ and of.is_cached]
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        files |= {file.key: file for file in pool.map(fetch, asked)}
    return {each.key: files[each.key] if each.key in files else fetch(each) for each in sources}


class _Newest(NamedTuple):
    """The copy that was fetched last."""

    version: Validator
    sha256: str | None
    """The sha256 of the content; None where the file is fetched as it is read."""


@dataclass
class _File:
    """One remote file of a dataset, which is asked for until it is there."""

    _source: RawSource
    _dataset: Path
    """The dataset's folder."""
    _store: Store
    """The store that the folder is in."""
    _progress: Progress | None
    _offline: bool
    _rehash: bool
    """Read every copy, whatever is remembered of it."""
    _is_read_later: bool
    """Fetch nothing but what is read later, of a file of more than `LEAST_BYTES` whose versions can
    be distinguished and of which no whole copy is there."""
    _newest: _Newest | None = None
    _furthest: int = 0
    """Most bytes that were on disk after a try."""

    def __post_init__(self) -> None:
        source = self._source
        self._folder = self._dataset / "raw" / source.key
        self._listed = source.version if source.hub is None else source.hub.probe()
        # Nothing of a file of any size is kept here; a version that is listed is not asked for.
        self._is_streamed = self._store.is_cached
        self._is_read_later |= self._is_streamed
        named = source.url  # with its query, which names content, but without userinfo: a guessed
        if is_url(named):  # password could be checked against the digest
            parts = split_url(named)
            named = f"{parts.origin}{parts.path}?{parts.query}"
        self._url_sha256 = hashlib.sha256(named.encode()).hexdigest()
        name = source.key.rpartition("/")[2]
        self._name = f"_{name}" if name == OWN_FOLDER else name

    def fetch(self) -> RawFile:
        """Return the raw file of the version that is at the URL now.

        The server is asked once which version that is (ETag, Last-Modified and size; the size alone
        if it reports no more; always downloaded if it reports nothing), and only another version is
        downloaded, to a folder of its own. A download that broke off, or whose process was killed,
        goes on after the last whole block if the version is still the same and the server can. With
        `offline` the newest copy is taken without asking; of a file of the hub, the one that was
        listed.

        Raises: RawFileError if a copy is damaged, and if the server cannot be asked, although a
        copy may be there: the caller would not know that it is outdated.
        """
        if self._is_streamed and self._listed is not None:
            return self._as_read(self._listed)
        self._folder.mkdir(parents=True, exist_ok=True)
        # One process at a time passes; the others wait, and then find what it fetched.
        with (self._folder / ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:  # some cluster file systems have no locks
                _log.warning(
                    "%s: expected a file system with locks, found %s; do not let two runs fetch "
                    "this file at once",
                    lock.name,
                    error.strerror or error,
                )
            return self._complete()

    def _as_read(self, version: Validator) -> RawFile:
        """Return a version as a file that is fetched as it is read."""
        is_streamed, hub = self._is_streamed, self._source.hub
        known = version.least() if is_streamed else version
        remote = RemoteVersion(
            access=_access(self._source, known),
            url=self._source.url,
            url_sha256=self._url_sha256,
            validator=known,
            sha256=None if hub is None else hub.sha256,
            is_kept=not is_streamed,
        )
        folder = self._folder / f"{BLOCKS_PREFIX}{remote.fingerprint[:16]}"
        path, stamp = RemoteFile.of(folder / self._name, remote), Stamp(remote.num_bytes, 0, 0, 0)
        return RawFile(key=self._source.key, path=path, stamp=stamp, digest=remote.fingerprint)

    def _read_newest(self) -> _Newest | None:
        """Return the newest copy, if it is of this URL and may be used; one that is not whole where
        files are fetched as they are read."""
        try:
            fields = json.loads((self._folder / NEWEST_NAME).read_text())
            newest = _Newest(Validator(**fields["validator"]), fields["sha256"])
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None  # without it the file is downloaded again
        is_same = fields.get("url_sha256") == self._url_sha256
        if not is_same or self._listed not in (None, newest.version):
            return None
        if newest.sha256 is None:
            return newest if self._is_read_later else None
        here = Store(self._dataset)  # whatever is at the URL of its store
        return newest if here.is_intact(self._copy(newest.sha256).parent) else None

    def _copy(self, sha256: str) -> Path:
        return self._folder / sha256[:16] / self._name

    def _complete(self) -> RawFile:
        """Return the version that is there now, however often the server breaks off."""
        self._newest = self._read_newest()
        access = _access(self._source, None)
        retries = Retries(self._source.url, self._gave_up)
        while True:
            before = self._furthest
            try:
                return self._attempt(access)
            except TransientError as error:
                retries.wait(error, has_advanced=self._furthest > before)

    def _attempt(self, access: Access) -> RawFile:
        newest = self._newest
        is_asked = not self._offline or (self._is_streamed and newest is None)
        if newest is not None and (not is_asked or newest.version == self._source.version):
            return self._known(newest)
        version = access.probe() if is_asked else Validator()
        # Without any identifier no two answers can be compared, and the file is read each time.
        if newest is not None and newest.version == version != Validator():
            return self._known(newest)
        remote, least_bytes = self._as_read(version), -1 if self._is_streamed else LEAST_BYTES
        if self._is_read_later and version.is_strong and remote.num_bytes > least_bytes:
            self._write_newest(_Newest(version, None))
            return remote
        if self._offline:
            raise remote_error(
                self._source.url,
                "none",
                expected=f"a complete copy in {self._store.shown(self._folder)}, as asked not to "
                "use the network",
                remedy="fetch it once without `offline`",
            )
        blocks = Blocks(remote.path)
        num_bytes, sha256 = self._download(blocks, version, access)
        return self._publish(blocks, num_bytes, version, sha256)

    def _known(self, newest: _Newest) -> RawFile:
        """Return the newest copy, which is read if it was changed since.

        Raises: RawFileError if it is damaged.
        """
        if newest.sha256 is None:
            return self._as_read(newest.version)
        key, path = self._source.key, self._copy(newest.sha256)
        for rehash in (self._rehash, True):  # a wrong sha256 may only be remembered of it
            files = hash_files(
                {key: path}, store=self._dataset, progress=self._progress, rehash=rehash
            )
            if files[key].sha256 == newest.sha256:
                return files[key]
        expected = f"content with sha256 {newest.sha256[:16]}…"
        found = f"{files[key].num_bytes:,} bytes with sha256 {files[key].sha256[:16]}…"
        remedy = f"delete the folder {path.parent} and run again to fetch it anew"
        raise RawFileError(where=path, expected=expected, found=found, remedy=remedy)

    def _download(self, blocks: Blocks, version: Validator, access: Access) -> tuple[int, str]:
        """Fetch the blocks that are not there yet; return the size and the sha256 of the file.

        Raises: TransientError where an answer breaks off, or is not of the one version that was
        promised; RawFileError if the disk does not take it.
        """
        if not version.is_strong:
            blocks.clear()
        digest, num_bytes, total = hashlib.sha256(), 0, version.num_bytes
        while data := blocks.find(num_bytes // blocks.block_bytes):
            digest.update(data)
            num_bytes += len(data)
            if len(data) < blocks.block_bytes:  # the last one
                break
        if num_bytes == 0 or num_bytes != total:
            with access.open_at(num_bytes) as body:
                if body.offset != num_bytes:
                    blocks.clear()
                    digest, num_bytes = hashlib.sha256(), 0
                total, is_last = body.num_bytes, False
                while not is_last:
                    piece, broken = read_all(body, blocks.block_bytes)
                    is_last = len(piece) < blocks.block_bytes
                    end = num_bytes + len(piece)
                    if broken or (is_last and total not in (None, end)):
                        raise broken or TransientError(f"{end:,} of {total:,} bytes")
                    if piece:
                        blocks.keep(
                            num_bytes // blocks.block_bytes, bytes(piece), room=total or end
                        )
                    digest.update(piece)
                    num_bytes = end
                    self._furthest = max(self._furthest, num_bytes)
                    if self._progress is not None and piece:
                        self._progress(num_bytes, total)
        sha256, found, hub = digest.hexdigest(), None, self._source.hub
        if access.probe() != version:
            found = "another version of the file after the download than before"
        elif hub is not None and hub.sha256 not in (None, sha256):
            found = f"sha256 {sha256[:16]}… where the hub has {hub.sha256[:16]}…"
        if found is not None:
            blocks.clear()
            raise TransientError(found)
        return num_bytes, sha256

    def _publish(self, blocks: Blocks, num_bytes: int, version: Validator, sha256: str) -> RawFile:
        """Make a complete copy of the blocks, and return it."""
        key, hub, path = self._source.key, self._source.hub, self._copy(sha256)
        recipe = Recipe(stage="raw", version=RAW_VERSION, config={}, parents={"content": sha256})
        with new_folder(path.parent, self._store) as temporary:
            manifest = Manifest(
                recipe=recipe,
                dataset=self._dataset.name,
                partition=key,
                counts={"num_bytes": num_bytes},
                details={} if hub is None else {"origin": hub.origin},
                files={self._name: FileEntry(num_bytes=num_bytes, sha256=sha256)},
            )
            write_manifest(temporary, manifest, run={"url": redact(self._source.url)})
            blocks.move_to(temporary / self._name, num_bytes)
        self._write_newest(_Newest(version, sha256))
        return RawFile(key=key, path=path, stamp=stamp_of(path), digest=sha256)

    def _write_newest(self, newest: _Newest) -> None:
        fields = {
            "url": redact(self._source.url),
            "url_sha256": self._url_sha256,
            "validator": asdict(newest.version),
            "sha256": newest.sha256,
            **({} if self._source.hub is None else {"origin": self._source.hub.origin}),
        }
        with new_file(self._folder / NEWEST_NAME) as path:
            path.write_text(json.dumps(fields, indent=1) + "\n")

    def _gave_up(self, found: str) -> FetchError:
        remedy = "run again when the server answers; the bytes that arrived are kept"
        if self._newest is not None and self._newest.sha256 is not None:
            remedy = (
                "run again when the server answers, or move the earlier copy "
                f"{self._copy(self._newest.sha256)} out of the store and name it under raw.files"
            )
        return fetch_error(self._source.url, found, remedy=remedy)


def _access(source: RawSource, version: Validator | None) -> Access:
    """Return the access to a file; `version`: the one of which ranges are to be read."""
    if source.hub is not None:
        return source.hub
    if source.url.lower().startswith(("http://", "https://")):
        from tokflow.raw.web import WebFile  # and with it urllib3, ssl: 0.1 s

        return WebFile(source.url, source.named_hosts)
    from tokflow.raw.buckets import StoredObject

    return StoredObject(source.url, version)

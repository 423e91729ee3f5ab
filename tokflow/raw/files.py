"""Raw files on this disk, with the identity of their content."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokflow.raw.hashes import HashedFile, Progress, changed_error, hash_file, hash_files, stamp_of
from tokflow.raw.keys import check_key
from tokflow.raw.listing import RawSource, check_outside
from tokflow.raw.remote_file import RemoteFile
from tokflow.store.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class RawFile(HashedFile):
    """One raw file; the sha256 of its content is its fingerprint.

    It is on this disk, or its path is a `RemoteFile`, and the fingerprint, if nobody tells the
    sha256 of the content, that of its version.
    """

    key: str
    """The path below the folder that all patterns have in common."""

    @property
    def num_bytes(self) -> int:
        """Size when it was hashed."""
        return self.stamp.num_bytes

    @property
    def is_lazy(self) -> bool:
        """True if it is fetched as it is read."""
        return isinstance(self.path, RemoteFile)

    @property
    def origin(self) -> dict[str, str]:
        """The dataset of the hub, and its commit, that a file was listed in of which no copy is
        kept, whose manifest would say it; else empty."""
        version = self.path.version if isinstance(self.path, RemoteFile) else None
        if version is None or not version.is_streamed:
            return {}
        return dict(getattr(version.access, "origin", {}))

    @property
    def read_sha256(self) -> str | None:
        """The sha256 of what was read as it arrived, from its first byte to its last."""
        return self.path.read_sha256 if isinstance(self.path, RemoteFile) else None

    @property
    def version(self) -> dict[str, Any] | None:
        """Version identifiers as plain JSON, for a file whose sha256 is unknown; else None."""
        version = self.path.version if isinstance(self.path, RemoteFile) else None
        return None if version is None or version.sha256 is not None else version.identity


def read_raw_files(
    sources: Iterable[RawSource],
    *,
    store: Path,
    of: Store | None = None,
    progress: Progress | None = None,
    offline: bool = False,
    rehash: bool = False,
    as_read: bool = False,
) -> dict[str, RawFile]:
    """Return the raw files by key, in the order of `sources`: hashed if they are of this machine,
    fetched to `store`, the dataset's folder in a store, `of`, if they are not.

    A local file that is unchanged since it was hashed is not read again; a remote one of which
    the newest version is in the store costs one question to its server, or none with `offline`.
    With `rehash` every file on this disk is read, whatever is remembered of it. With `as_read` of
    a large file that is elsewhere only that is fetched which is read later, and where the store is
    elsewhere, too, so are all files whose versions can be told apart. Local files are hashed in
    parallel, and `progress` then counts the bytes of all that were not hashed before; remote files
    are fetched one after the other, and it counts those of each; where nothing is fetched, servers
    are asked several at once.

    Raises: RawFileError if one is missing, unreadable, changes meanwhile, cannot be fetched, or
    if its copy in the store is damaged; ConfigError if a key is not safe or a file is one of the
    store.
    """
    sources = list(sources)
    for source in sources:
        check_outside(source, store)
        check_key(source.key)
    local = {source.key: Path(source.url) for source in sources if source.is_local}
    hashed = hash_files(local.values(), store=store, progress=progress, rehash=rehash)
    files = {key: hashed[path] for key, path in local.items()}
    if remote := [source for source in sources if not source.is_local]:
        from tokflow.raw.fetch import Fetching  # local files need nothing of it

        of = of or Store(store)
        how = Fetching(store, not of.is_here, progress, offline, rehash, as_read, of)
        files |= how.all_hashed(remote)
    names = "path", "stamp", "sha256", "remembered", "is_settled"
    fields = {key: {name: getattr(file, name) for name in names} for key, file in files.items()}
    return {source.key: RawFile(**fields[source.key], key=source.key) for source in sources}


def check_unchanged(raw: RawFile) -> None:
    """Raise RawFileError if the file is not as it was when it was hashed.

    Whoever has read `raw.path` calls this before using what was read. It compares size, mtime,
    ctime and inode; if ctime alone differs (as after chmod, or a backup by hard links), or the file
    was changed just before it was hashed, the content is hashed again and decides. What is fetched
    as it is read is never of two versions.
    """
    if raw.is_lazy:
        return
    now = stamp_of(raw.path)
    if now == raw.stamp and raw.is_settled:
        return
    is_ctime_alone = dataclasses.replace(now, ctime_ns=raw.stamp.ctime_ns) == raw.stamp
    if is_ctime_alone and hash_file(raw.path).sha256 == raw.sha256:
        return
    raise changed_error(raw.path, raw.stamp, now)

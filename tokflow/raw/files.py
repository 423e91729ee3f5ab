"""Raw files on this disk, with the identity of their content, and the partitions that they make:
one for each file, or for groups of small ones."""

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokflow.errors import ConfigError
from tokflow.raw.config import GroupSize
from tokflow.raw.hashes import HashedFile, Progress, changed_error, hash_file, hash_files, stamp_of
from tokflow.raw.listing import RawSource, check_key, check_outside
from tokflow.raw.remote import RemoteVersion
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
    def remote(self) -> RemoteVersion | None:
        """Its version, if it is fetched as it is read."""
        return self.path.version if isinstance(self.path, RemoteFile) else None

    @property
    def version(self) -> dict[str, Any] | None:
        """Version identifiers as plain JSON, for a file whose sha256 is unknown; else None."""
        remote = self.remote
        return None if remote is None or remote.sha256 is not None else remote.identity

    @property
    def described(self) -> dict[str, Any]:
        """What a manifest says of a file that was fetched as it was read: the origin of one of the
        hub of which no copy is kept; and the version of one whose sha256 was unknown, with the
        sha256 if one task has read all of it from its start."""
        remote = self.remote
        if remote is None:
            return {}
        origin = {} if remote.is_kept else getattr(remote.access, "origin", {})
        found = {"origin": dict(origin)} if origin else {}
        if self.version is None:
            return found
        sha256 = getattr(self.path, "read_sha256", None)
        digest = {} if sha256 is None else {"sha256": sha256}
        return {"raw_version": {**self.version, **digest}, **found}


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

        how = Fetching(store, of or Store(store), progress, offline, rehash, as_read)
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
    if raw.remote is not None:
        return
    now = stamp_of(raw.path)
    if now == raw.stamp and raw.is_settled:
        return
    is_ctime_alone = dataclasses.replace(now, ctime_ns=raw.stamp.ctime_ns) == raw.stamp
    if is_ctime_alone and hash_file(raw.path).sha256 == raw.sha256:
        return
    raise changed_error(raw.path, raw.stamp, now)


def group_key(first: str) -> str:
    """Return the partition key of the group that begins with this file.

    Groups sort as their files do, and keep their keys when files are added behind them.
    """
    return f"group/{first}"


@dataclass(frozen=True)  # without slots, since it keeps its digest
class RawPartition:
    """The raw files that one partition is made of, which are on this disk: one, or a group."""

    key: str
    """The partition key."""
    files: tuple[RawFile, ...]
    """In the order of their own keys; one at least."""

    @property
    def is_group(self) -> bool:
        """True if documents have to say which file they are of: several files, or one that others
        may join."""
        return self.key != self.files[0].key

    @cached_property
    def sha256(self) -> str:
        """Its fingerprint: of one file that of its content, of a group that of the list of its
        files' keys and contents."""
        if not self.is_group:
            return self.files[0].sha256
        members = [[file.key, file.sha256] for file in self.files]
        return hashlib.sha256(json.dumps(members, ensure_ascii=False).encode()).hexdigest()

    @property
    def num_bytes(self) -> int:
        """Size of the files together when they were hashed."""
        return sum(file.stamp.num_bytes for file in self.files)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, in their order."""
        return tuple(file.path for file in self.files)

    @property
    def sizes(self) -> dict[Path, int]:
        """Bytes of each file."""
        return {file.path: file.stamp.num_bytes for file in self.files}

    def check_unchanged(self, paths: Iterable[Path] | None = None) -> None:
        """Raise RawFileError if a file, of those at `paths` or all, is not as it was hashed."""
        for path in self.paths if paths is None else paths:
            check_unchanged(self.by_path[path])

    @cached_property
    def by_path(self) -> dict[Path, RawFile]:
        """The files by their paths."""
        return {file.path: file for file in self.files}


def partitions_of(
    sources: Mapping[str, RawSource],
    size: GroupSize | None,
    *,
    is_alone: Callable[[Path, int], bool],
    kind_of: Callable[[str], object],
) -> dict[str, tuple[RawSource, ...]]:
    """Return the raw files of each partition by its key, in the order of `sources`.

    Without `size` each file is a partition. With it neighbours are, as many as fit; a file with
    which a group would be larger begins the next. So files that are added at the end change the
    last group alone. No group has files of two kinds, nor another beside one that `is_alone`, by
    path and bytes, as a large one is that several workers read.

    Raises: ConfigError where groups are to have so many bytes, and a file is elsewhere.
    """
    if size is None:
        return {key: (source,) for key, source in sources.items()}
    groups: list[list[RawSource]] = []
    last: object = None
    num_bytes = 0
    for key, source in sources.items():
        of_file = _num_bytes(source, size)
        alone = source.is_local and is_alone(Path(source.url), of_file)
        kind = key if alone else (kind_of(key),)  # a key is no tuple, so no other is of its kind
        num_bytes += of_file
        is_full = groups and (len(groups[-1]) >= size.num_files or num_bytes > size.num_bytes)
        if kind != last or is_full:
            groups.append([])
            num_bytes = of_file
        groups[-1].append(source)
        last = kind
    return {group_key(group[0].key): tuple(group) for group in groups}


def _num_bytes(source: RawSource, size: GroupSize) -> int:
    if source.is_local:
        with suppress(OSError):  # which is told where the file is read
            return os.stat(source.url).st_size  # noqa: PTH116 (100,000 Paths cost 0.1 s)
        return 0
    if source.num_bytes is not None:
        return source.num_bytes
    if size.num_bytes == sys.maxsize:
        return 0
    raise ConfigError(
        where="raw.group",
        expected="a number of files, for not all raw files are on this disk, and the size of "
        "others is not known before they are fetched",
        found=f"bytes, and {source.key}, which is elsewhere",
        remedy="write how many files a group has, such as 500",
    )

"""Raw files by the identity of their content, and the partitions that they make: one for each file,
or for groups of small ones."""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from tokflow.errors import ConfigError
from tokflow.pools.machine import num_cores
from tokflow.raw.config import GroupSize
from tokflow.raw.hashes import HashCache, HashedFile, Progress, changed_error, hash_file, stamp_of
from tokflow.raw.remote_file import RemoteFile
from tokflow.raw.remote_version import RemoteVersion
from tokflow.raw.sources import RawSource
from tokflow.store.listed_files import Stamp

RACY_SECONDS = 2.0
"""A file changed so shortly before it was hashed, by the clock of its file system, could change
again within one tick of that clock (2 s on FAT) and look the same; its checksum is not kept."""

CLOCK_SECONDS = 60
"""Largest difference that is allowed for to the clock of a file system that cannot be asked."""

MOST_READ_TWICE = 10_000_000
"""Bytes that are hashed before they are read, while an engine is loaded: memory has them then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RawFile:
    """One raw file; the sha256 of its content is its fingerprint.

    It is on this disk, and its path is a `HashedFile` until it was read, or a `RemoteFile`. Where
    the source of a remote file does not report the sha256 of the content, the fingerprint is that
    of its version.
    """

    key: str
    """The path below the folder that all patterns have in common."""
    path: Path
    stamp: Stamp
    """Size, times and inode when it was found, or hashed; `check_unchanged` compares them."""
    digest: str = ""
    """The sha256 where it is known already."""
    remembered: str | None = None
    """Another sha256 that the cache had for this stamp, wrongly, and has no more."""
    is_settled: bool = True
    """False if it was changed so shortly before that another change need not alter its stamp."""

    @property
    def sha256(self) -> str:
        """The sha256 of its content, which is read to the end if need be. Raises: RawFileError."""
        return self.path.sha256() if isinstance(self.path, HashedFile) else self.digest

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
        """Fields of a manifest about a file that was fetched as it was read: the origin of one of
        the hub of which no copy is kept; the version of one whose sha256 was unknown, with the
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

    def check_unchanged(self) -> None:
        """Raise RawFileError if the file is not as it was when it was hashed.

        Whoever has read it calls this before using what was read. It compares size, mtime, ctime
        and inode; if ctime alone differs (as after chmod, or a backup by hard links), or the file
        was changed just before it was hashed, the content is hashed again and decides. What is
        fetched as it is read is never of two versions.
        """
        if self.remote is not None:
            return
        now = stamp_of(self.path)
        if now == self.stamp and self.is_settled:
            return
        is_ctime_alone = replace(now, ctime_ns=self.stamp.ctime_ns) == self.stamp
        if not is_ctime_alone or hash_file(self.path)[1] != self.sha256:
            raise changed_error(self.path, self.stamp, now)


def hash_files(
    paths: Mapping[str, Path],
    *,
    store: Path,
    progress: Progress | None = None,
    rehash: bool = False,
    reads_once: bool = False,
) -> dict[str, RawFile]:
    """Return files of this disk by key, with the sha256 from the cache in `store` where the file is
    unchanged.

    Files that are not in the cache are hashed in parallel, and with `rehash` all are: then the
    cache is not believed but put right. With `reads_once` they are hashed when they are read. 1,000
    cached files take about 20 ms (2 busy cores).

    Raises: RawFileError if one cannot be read, and if it changes meanwhile.
    """
    cache = HashCache(store)
    files = {}
    for key, path in paths.items():
        stamp = stamp_of(path)
        files[key] = RawFile(key=key, path=path, stamp=stamp, digest=cache.find(path, stamp) or "")
    unread = [file for file in files.values() if rehash or not file.digest]
    settled = _settled_times(unread, store)
    if reads_once and sum(file.num_bytes for file in unread) > MOST_READ_TWICE:
        later = [of for of in unread if of.stamp.changed_ns <= settled[of.path]]
        files |= {of.key: replace(of, path=HashedFile.of(of.path, of.stamp, cache)) for of in later}
        unread = [of for of in unread if of.stamp.changed_ns > settled[of.path]]
    num_bytes, done = sum(file.num_bytes for file in unread), 0
    with ThreadPoolExecutor(num_cores()) as pool:  # which starts no thread for one file alone
        is_alone = len(unread) == 1
        each = (file.path for file in unread)
        alone = (hash_file(path, progress=progress) for path in each)
        hashed = alone if is_alone else pool.map(hash_file, each)
        for file, (stamp, sha256) in zip(unread, hashed, strict=True):
            before = file.digest if file.digest not in ("", sha256) else None
            is_settled = stamp.changed_ns <= settled[file.path]
            files[file.key] = replace(
                file, stamp=stamp, digest=sha256, remembered=before, is_settled=is_settled
            )
            if is_settled:
                cache.keep(file.path, stamp, sha256)
            done += stamp.num_bytes
            if progress is not None and not is_alone:
                progress(done, num_bytes)
    return files


def _settled_times(files: Sequence[RawFile], store: Path) -> dict[Path, int]:
    """Return by path the time, in ns, at or before which a file must have changed last so that any
    later change alters its stamp. The clock of a file system, which may be a server's, is asked
    once, and only if a file on it is younger than a day."""
    now = time.time_ns()
    settled = {file.path: now - 86_400 * 10**9 for file in files}
    clocks: dict[int, int] = {}
    for path in [file.path for file in files if file.stamp.changed_ns > settled[file.path]]:
        with suppress(OSError):  # of a file that is gone, which hashing reports
            device = path.stat().st_dev
            if device not in clocks:
                times = (_clock_ns(folder, device) for folder in (path.parent, store))
                clocks[device] = next(filter(None, times), now - CLOCK_SECONDS * 10**9)
            settled[path] = clocks[device] - int(RACY_SECONDS * 1e9)
    return settled


def _clock_ns(folder: Path, device: int) -> int | None:
    """Return the time of a file system: the ctime of a file without a name that is made in a folder
    of it; None where none can be made."""
    with suppress(OSError), TemporaryFile(dir=folder, prefix=".tokflow.") as file:
        status = os.fstat(file.fileno())
        return status.st_ctime_ns if status.st_dev == device else None
    return None


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
        """True for several files, or one that more may join: documents then name their file."""
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
    def is_hashed(self) -> bool:
        """True if the sha256 of all files is known."""
        return all(of.is_hashed for of in self.paths if isinstance(of, HashedFile))

    @property
    def by_stamp(self) -> "RawPartition":
        """The partition as it is known before it is read: with stamps in place of checksums."""

        def by_stamp(file: RawFile) -> RawFile:
            digest = hashlib.sha256(repr(file.stamp).encode()).hexdigest()
            return replace(file, path=Path(file.path), digest=digest)

        files = (of if of.remote else by_stamp(of) for of in self.files)
        return RawPartition(self.key, tuple(files))

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
        for file in self.files if paths is None else map(self.by_path.__getitem__, paths):
            file.check_unchanged()

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

    Raises: ConfigError where `size` is in bytes, and the size of a remote file is not known.
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
        with suppress(OSError):  # reported where the file is read
            return os.stat(source.url).st_size  # noqa: PTH116 (100,000 Paths cost 0.1 s)
        return 0
    if source.num_bytes is not None:
        return source.num_bytes
    if size.num_bytes == sys.maxsize:
        return 0
    expected = (
        "a number of files, because the size of some remote files is not known before they "
        "are fetched"
    )
    found = f"bytes, and the remote file {source.key}"
    remedy = "write how many files a group has, such as 500"
    raise ConfigError(where="raw.group", expected=expected, found=found, remedy=remedy)

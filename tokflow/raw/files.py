"""Raw files by the identity of their content, and the partitions that they make: one for each file,
or for groups of small ones."""

import dataclasses
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from tokflow.errors import ChangedFileError, ConfigError, RawFileError
from tokflow.pools.cores import num_cores
from tokflow.raw.config import GroupSize
from tokflow.raw.listing import RawSource
from tokflow.raw.remote import RemoteVersion
from tokflow.raw.remote_file import RemoteFile
from tokflow.store.listed_files import Stamp
from tokflow.store.manifest import plain_json

Progress = Callable[[int, int | None], None]
"""Called with the bytes done so far and all there are to do, or None if that is not known."""

CACHE_NAME = "hashes.jsonl"
RACY_SECONDS = 2.0
"""A file changed so shortly before it was hashed, by the clock of its file system, could change
again within one tick of that clock (2 s on FAT) and look the same; its checksum is not kept."""

CLOCK_SECONDS = 60
"""Largest difference that is allowed for to the clock of a file system that cannot be asked."""

_BLOCK_BYTES = 4 * 2**20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class RawFile:
    """One raw file; the sha256 of its content is its fingerprint.

    It is on this disk, or its path is a `RemoteFile`. Where the source of a remote file does not
    report the sha256 of the content, the fingerprint is that of its version.
    """

    key: str
    """The path below the folder that all patterns have in common."""
    path: Path
    stamp: Stamp
    """Size, times and inode when it was hashed; `check_unchanged` compares them."""
    sha256: str
    remembered: str | None = None
    """Another sha256 that the cache had for this stamp, wrongly, and has no more."""
    is_settled: bool = True
    """False if it was changed so shortly before that another change need not alter its stamp."""

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


class HashCache:
    """Checksums by path and stamp, in one file of a store that several processes may use at once.

    A line of JSON for each: path, stamp, sha256; the last line of a path counts. A line that
    cannot be read, such as one that was cut off, costs that its file is hashed again, and so does
    a cache that cannot be opened or written.
    """

    def __init__(self, store: Path) -> None:
        self._path = store / CACHE_NAME
        self._known: dict[str, tuple[Stamp, str]] = {}
        content = b""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            pass
        except OSError as error:
            found = error.strerror or error
            _log.warning("%s: cannot be used (%s), so files are hashed again", self._path, found)
        for line in filter(None, content.splitlines()):
            with suppress(ValueError, TypeError, RecursionError):
                path, *stamp, sha256 = plain_json(line)
                if len(sha256) == 64:
                    self._known[path] = Stamp(*stamp), sha256

    def find(self, path: Path, stamp: Stamp) -> str | None:
        """Return the checksum the file had when it had this stamp, or None."""
        known, sha256 = self._known.get(str(path.absolute()), (None, None))
        return sha256 if known == stamp else None

    def keep(self, path: Path, stamp: Stamp, sha256: str) -> None:
        """Remember the checksum of a file with this stamp."""
        name = str(path.absolute())
        if self._known.get(name) == (stamp, sha256):
            return
        self._known[name] = stamp, sha256
        line = json.dumps([name, *astuple(stamp), sha256])
        with suppress(OSError):  # a full or read-only disk is reported by other writes
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                # One call appends it whole; the first line end closes one that was cut off.
                file.write(f"\n{line}\n".encode())


def hash_files(
    paths: Mapping[str, Path],
    *,
    store: Path,
    progress: Progress | None = None,
    rehash: bool = False,
) -> dict[str, RawFile]:
    """Return files of this disk by key, with the sha256 from the cache in `store` where the file is
    unchanged.

    Files that are not in the cache are hashed in parallel, and with `rehash` all are: then the
    cache is not believed but put right. 1,000 cached files take about 20 ms (2 busy cores).

    Raises: RawFileError if one cannot be read, and if it changes meanwhile.
    """
    cache = HashCache(store)
    files = {}
    for key, path in paths.items():
        stamp = stamp_of(path)
        files[key] = RawFile(key=key, path=path, stamp=stamp, sha256=cache.find(path, stamp) or "")
    unread = [file for file in files.values() if rehash or not file.sha256]
    settled = _settled_times(unread, store)
    num_bytes, done = sum(file.num_bytes for file in unread), 0
    with ThreadPoolExecutor(num_cores()) as pool:  # which starts no thread for one file alone
        is_alone = len(unread) == 1
        each = (file.path for file in unread)
        alone = (hash_file(path, progress=progress) for path in each)
        hashed = alone if is_alone else pool.map(hash_file, each)
        for file, (stamp, sha256) in zip(unread, hashed, strict=True):
            files[file.key] = RawFile(
                key=file.key,
                path=file.path,
                stamp=stamp,
                sha256=sha256,
                remembered=file.sha256 if file.sha256 not in ("", sha256) else None,
                is_settled=stamp.changed_ns <= settled[file.path],
            )
            if files[file.key].is_settled:
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


def hash_file(path: Path, *, progress: Progress | None = None) -> tuple[Stamp, str]:
    """Return the stamp of a file and the sha256 of its content, reading all of it.

    Raises: RawFileError if it cannot be read, and if it changes meanwhile.
    """
    digest, done = hashlib.sha256(), 0
    try:
        with path.open("rb", buffering=0) as file:
            before = Stamp.of(os.fstat(file.fileno()))
            block = memoryview(bytearray(min(_BLOCK_BYTES, before.num_bytes + 1)))
            while size := file.readinto(block):
                digest.update(block[:size])
                done += size
                if progress is not None:
                    progress(done, before.num_bytes)
    except OSError as error:
        raise _unreadable(path, error) from error
    after = stamp_of(path)
    if after != before or done != before.num_bytes:
        raise changed_error(path, before, after)
    return before, digest.hexdigest()


def stamp_of(path: Path) -> Stamp:
    """Return the stamp of the file as it is now. Raises: RawFileError if it cannot be read."""
    try:
        return Stamp.of(path.stat())
    except OSError as error:
        raise _unreadable(path, error) from error


def changed_error(path: Path, before: Stamp, after: Stamp) -> ChangedFileError:
    """Return the error for a raw file that somebody changes while it is in use."""
    found = f"another version of the same {after.num_bytes:,} bytes"
    if before.num_bytes != after.num_bytes:
        found = f"{before.num_bytes:,} bytes before and {after.num_bytes:,} after"
    return ChangedFileError(
        path=path,
        stamp=before,
        where=path,
        expected="a raw file that stays as it is while it is read",
        found=found,
        remedy="wait until whatever writes it is done, then run again",
    )


def _unreadable(path: Path, error: OSError) -> RawFileError:
    found, remedy = error.strerror or type(error).__name__, "make it readable"
    if isinstance(error, FileNotFoundError):
        found, remedy = "no such file", "restore it, or list the raw files again"
    return RawFileError(where=path, expected="a raw file", found=found, remedy=remedy)


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
    if is_ctime_alone and hash_file(raw.path)[1] == raw.sha256:
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
    raise ConfigError(
        where="raw.group",
        expected="a number of files, because the size of some remote files is not known before "
        "they are fetched",
        found=f"bytes, and the remote file {source.key}",
        remedy="write how many files a group has, such as 500",
    )

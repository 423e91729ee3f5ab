"""The sha256 of files, and a cache of those that were computed before."""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile

from tokflow.errors import ChangedFileError, RawFileError
from tokflow.pools.cores import num_cores
from tokflow.store.listed_files import Stamp
from tokflow.store.sealed import plain_json

Progress = Callable[[int, int | None], None]
"""Called with the bytes done so far and all there are to do, or None if that is not known."""

CACHE_NAME = "hashes.jsonl"
RACY_SECONDS = 2.0
"""A file changed so shortly before it was hashed, by the clock of its file system, could change
again within one tick of that clock (2 s on FAT) and look the same; its checksum is not kept."""

CLOCK_SECONDS = 60
"""The most by which the clock of a file system may differ where it cannot be asked."""

_BLOCK_BYTES = 4 * 2**20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HashedFile:
    """A file, what was hashed of it, and the stamp it had before and after."""

    path: Path
    stamp: Stamp
    """Size, times and inode; `check_unchanged` compares them."""
    sha256: str
    remembered: str | None = None
    """Another sha256 that the cache had for this stamp, wrongly, and has no more."""
    is_settled: bool = True
    """False if it was changed so shortly before that another change need not alter its stamp."""


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

    def keep(self, hashed: HashedFile) -> None:
        """Remember a checksum, unless the file could change without its stamp telling."""
        name, known = str(hashed.path.absolute()), (hashed.stamp, hashed.sha256)
        if self._known.get(name) == known or not hashed.is_settled:
            return
        self._known[name] = known
        line = json.dumps([name, *astuple(hashed.stamp), hashed.sha256])
        with suppress(OSError):  # nothing else fits, or may be written, and says so
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                # One call appends it whole; the first line end closes one that was cut off.
                file.write(f"\n{line}\n".encode())


def hash_files(
    paths: Iterable[Path],
    *,
    store: Path,
    progress: Progress | None = None,
    rehash: bool = False,
) -> dict[Path, HashedFile]:
    """Return the sha256 of each file, from the cache in `store` where the file is unchanged.

    Files that are not in the cache are hashed in parallel, and with `rehash` all are: then the
    cache is not believed but put right. 1,000 cached files take about 20 ms (2 busy cores).

    Raises: RawFileError if one cannot be read, and if it changes meanwhile.
    """
    cache = HashCache(store)
    stamps = {path: stamp_of(path) for path in paths}
    remembered = {path: cache.find(path, stamp) for path, stamp in stamps.items()}
    unread = {path: stamps[path] for path, of in remembered.items() if rehash or of is None}
    hashed = {path: HashedFile(path, stamps[path], of) for path, of in remembered.items() if of}
    settled = _settled_times(unread, store)
    num_bytes = sum(stamp.num_bytes for stamp in unread.values())
    done = 0
    with ThreadPoolExecutor(num_cores()) as pool:  # which starts no thread for one file alone
        is_alone = len(unread) == 1
        alone = (hash_file(path, progress=progress) for path in unread)
        for unknown in alone if is_alone else pool.map(hash_file, unread):
            known, path = remembered[unknown.path], unknown.path
            hashed[path] = replace(
                unknown,
                is_settled=unknown.stamp.changed_ns <= settled[path],
                remembered=None if known == unknown.sha256 else known,
            )
            cache.keep(hashed[path])
            done += unknown.stamp.num_bytes
            if progress is not None and not is_alone:
                progress(done, num_bytes)
    return hashed


def _settled_times(stamps: Mapping[Path, Stamp], store: Path) -> dict[Path, int]:
    """Return of each file the time, in ns, at or before which it must have changed last so that any
    later change alters its stamp. The clock of a file system, which may be a server's, is asked
    once, and only of files that are younger than a day."""
    now = time.time_ns()
    settled = dict.fromkeys(stamps, now - 86_400 * 10**9)
    clocks: dict[int, int] = {}
    for path in [of for of, stamp in stamps.items() if stamp.changed_ns > settled[of]]:
        try:
            device = path.stat().st_dev
        except OSError as error:
            raise _unreadable(path, error) from error
        if device not in clocks:
            told = (_clock_ns(folder, device) for folder in (path.parent, store))
            clocks[device] = next(filter(None, told), now - CLOCK_SECONDS * 10**9)
        settled[path] = clocks[device] - int(RACY_SECONDS * 1e9)
    return settled


def _clock_ns(folder: Path, device: int) -> int | None:
    """Return the time of a file system: the ctime of a file without a name that is made in a folder
    of it; None where none can be made."""
    with suppress(OSError), TemporaryFile(dir=folder, prefix=".tokflow.") as file:
        status = os.fstat(file.fileno())
        return status.st_ctime_ns if status.st_dev == device else None
    return None


def hash_file(path: Path, *, progress: Progress | None = None) -> HashedFile:
    """Return the sha256 of the file's content, reading all of it.

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
    return HashedFile(path, before, digest.hexdigest())


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

"""The limit of what the folders that stand for URLs take of this disk.

Files of the outputs that were used longest ago go, and come again when they are opened. Manifests
stay, and small outputs that a dataset has one of, such as a tokenizer; so does what is not finished
or was used a short time ago. A file that is open can be read on. Where that is not enough, of
exports that are used those files go that came first.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tokflow.errors import ConfigError, TokflowError
from tokflow.store.config import bytes_of
from tokflow.store.manifest import MANIFEST_NAME, OWN_FOLDER, RUN_NAME, read_manifest
from tokflow.store.remote.mirror import DAMAGE_NAME
from tokflow.store.remote.places import cache_folder
from tokflow.store.unfinished import is_segments_folder

LIMIT_VARIABLE = "TOKFLOW_CACHE_BYTES"
SHARE_OF_DISK = 0.5
"""Share of the disk's free bytes and the cache's that the cache may take by default."""

KEPT_SECONDS = 600
"""Seconds for which a file stays after its last use."""

NOTED_SECONDS = 60
"""Seconds from one note of a use to the next."""

LOOK_SECONDS = 3_600
"""Seconds after which a process looks at the size of the cache, however little it fetched."""

IN_STAGE = 2
"""Folders between that of a place and an output right in the folder of its stage."""

_STAY = (MANIFEST_NAME, RUN_NAME, DAMAGE_NAME)
_LOOKED_NAME = ".looked"

_used: dict[Path, float] = {}
_brought = 0
"""Bytes that this process has brought since it looked last."""


def note_use(folder: Path) -> None:
    """Remember that files of the output in a folder are used now."""
    now = time.monotonic()
    if now - _used.get(folder, -NOTED_SECONDS) >= NOTED_SECONDS:
        if len(_used) > 100_000:
            _used.clear()
        _used[folder] = now
        with suppress(OSError):
            os.utime(folder)


def note_bytes(num_bytes: int) -> None:
    """Account for fetched bytes; evict files now and then if they are over the limit."""
    global _brought
    _brought += num_bytes
    base = Path(cache_folder())
    looked = _status(base / _LOOKED_NAME)
    is_due = looked is None or time.time() - looked.st_mtime > LOOK_SECONDS
    if _brought >= limit_of(base) // 20 or is_due:
        _brought = 0
        make_room(base)


def limit_of(base: Path, *, taken: int = 0) -> int:
    """Return how many bytes the folder of all places may take; it takes `taken` now.

    Raises: ConfigError where the environment variable is no number of bytes.
    """
    named = os.environ.get(LIMIT_VARIABLE)
    if named is None:
        base.mkdir(parents=True, exist_ok=True)
        return int((shutil.disk_usage(base).free + taken) * SHARE_OF_DISK)
    try:
        return bytes_of(named)
    except ValueError:
        raise ConfigError(
            where=LIMIT_VARIABLE,
            expected="a number of bytes such as 500GB",
            found=repr(named),
            remedy="correct it, or leave it out for half of what is free",
        ) from None


@dataclass(frozen=True, slots=True)
class _Cached:
    """An output of which files are on this disk."""

    folder: str
    used: float
    """Seconds since 1970."""
    num_bytes: int


def make_room(base: Path) -> None:
    """Let files go until what is left takes nine tenths of the limit; nothing if that is kept, or
    another process does it now."""
    with (base / _LOOKED_NAME).open("w") as looked:
        try:
            fcntl.flock(looked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        outputs = [each for place in _folders(str(base)) for each in _cached(place)]
        taken = sum(each.num_bytes for each in outputs)
        limit = limit_of(base, taken=taken)
        if taken <= limit:
            return
        too_much, recent = taken - 0.9 * limit, time.time() - KEPT_SECONDS
        for each in sorted(outputs, key=lambda each: each.used):
            if too_much > 0 and each.used <= recent and _let_go(each):
                too_much -= each.num_bytes
        in_use = [path for each in outputs if each.used > recent for path in _of_export(each)]
        came = [(of.st_mtime, of.st_size, path) for path in in_use if (of := _status(path))]
        for seconds, num_bytes, path in sorted(came):
            if too_much > 0 and seconds <= recent:
                too_much -= num_bytes
                path.unlink(missing_ok=True)


def _of_export(output: _Cached) -> list[Path]:
    """Return the files of an export that may go while it is used, as one larger than the limit is
    by a training: loaders find them gone and bring them again. None of an output without a format,
    whose readers take a file to stay."""
    with suppress(TokflowError):
        if "format" in read_manifest(Path(output.folder)).details:
            found = _files(output.folder)
            return [of for of in found if of.parent.name != OWN_FOLDER and of.suffix != ".part"]
    return []


def _let_go(output: _Cached) -> bool:
    """Remove the files of an output unless it is used now; return whether it was done."""
    with suppress(FileNotFoundError):
        if os.stat(output.folder).st_mtime > output.used:  # noqa: PTH116
            return False
        for path in _files(output.folder):
            path.unlink(missing_ok=True)
    return True


def _cached(folder: str, *, depth: int = 0) -> Iterator[_Cached]:
    """Yield the outputs in the folder of a place and below it that may go.

    None goes that lies right in the folder of its stage: the tokenizer, of which a dataset has one,
    and whose files are read by their paths.
    """
    for inner in _folders(folder):
        name = inner.rpartition("/")[2]
        if name[0] == "." and not is_segments_folder(Path(inner)):
            continue  # not finished: it may be on its way to its URL
        if (found := _of_output(inner)) is None:
            yield from _cached(inner, depth=depth + 1)
        elif depth != IN_STAGE:
            yield found


def _of_output(folder: str) -> _Cached | None:
    """Return an output with what it takes; None where the folder is none."""
    of_folder = _status(Path(folder))
    if of_folder is None or not Path(folder, MANIFEST_NAME).exists():
        return None
    statuses = [status for path in _files(folder) if (status := _status(path)) is not None]
    used = max(of.st_mtime for of in (of_folder, *statuses))
    return _Cached(folder, used, sum(of.st_size for of in statuses))


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a file; None of one that has gone, or has its name by now."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _files(folder: str) -> list[Path]:
    """Return the files of an output that may go."""
    found = (Path(inner, name) for inner, _, names in os.walk(folder) for name in names)
    stay = {Path(folder, name) for name in _STAY}
    return [path for path in found if path not in stay]


def _folders(folder: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []

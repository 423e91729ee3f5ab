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
from tokflow.store.atomic import is_segments_folder
from tokflow.store.config import bytes_of
from tokflow.store.manifest import MANIFEST_NAME, OWN_FOLDER, RUN_NAME, read_manifest
from tokflow.store.remote.mirror import DAMAGE_NAME
from tokflow.store.remote.places import cache_folder

LIMIT_VARIABLE = "TOKFLOW_CACHE_BYTES"
SHARE_OF_DISK = 0.5
"""Share of the disk's free bytes and the cache's that the cache may take by default."""

KEPT_SECONDS = 600
"""Seconds for which a file stays after its last use."""

NOTED_SECONDS = 60
"""Seconds from one note of a use to the next."""

LOOK_SECONDS = 3_600
"""Seconds after which a process looks at the size of the cache, however little it fetched."""

STAGE_DEPTH = 3
"""Parts of the path of a stage's folder in the cache: place, dataset and stage."""

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

    folder: Path
    used: float
    """Seconds since 1970."""
    files: dict[Path, os.stat_result]
    """Those that may go."""

    @property
    def num_bytes(self) -> int:
        return sum(status.st_size for status in self.files.values())


def make_room(base: Path) -> None:
    """Let files go until what is left takes nine tenths of the limit; nothing if that is kept, or
    another process does it now."""
    with (base / _LOOKED_NAME).open("w") as looked:
        try:
            fcntl.flock(looked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        outputs = list(_cached(base))
        taken = sum(each.num_bytes for each in outputs)
        limit = limit_of(base, taken=taken)
        if taken <= limit:
            return
        too_much, recent = taken - 0.9 * limit, time.time() - KEPT_SECONDS
        for each in sorted(outputs, key=lambda each: each.used):
            if too_much > 0 and each.used <= recent and _let_go(each):
                too_much -= each.num_bytes
        in_use = [of for each in outputs if each.used > recent for of in _of_export(each)]
        for path, status in sorted(in_use, key=lambda of: of[1].st_mtime):
            if too_much > 0 and status.st_mtime <= recent:
                too_much -= status.st_size
                path.unlink(missing_ok=True)


def _of_export(output: _Cached) -> list[tuple[Path, os.stat_result]]:
    """Return the files of an export that may go while it is used, as one larger than the limit is
    by a training: loaders find them gone and bring them again. None of an output without a format,
    whose readers take a file to stay."""
    with suppress(TokflowError):
        if "format" in read_manifest(output.folder).details:
            found = output.files.items()
            return [
                of for of in found if of[0].parent.name != OWN_FOLDER and of[0].suffix != ".part"
            ]
    return []


def _let_go(output: _Cached) -> bool:
    """Remove the files of an output unless it is used now; return whether it was done."""
    status = _status(output.folder)
    if status is not None and status.st_mtime > output.used:
        return False
    for path in output.files:
        path.unlink(missing_ok=True)
    return True


def _cached(base: Path) -> Iterator[_Cached]:
    """Yield the outputs in the folders of all places that may go.

    None goes that lies right in the folder of its stage: the tokenizer, of which a dataset has one,
    and whose files are read by their paths. Nor does what is not finished, which is hidden: it may
    be on its way to its URL.
    """
    for inner, folders, _ in os.walk(base):
        in_stage = len(Path(inner).relative_to(base).parts) == STAGE_DEPTH
        for folder in [Path(inner, name) for name in folders]:
            is_hidden = folder.name.startswith(".") and not is_segments_folder(folder)
            is_output = (folder / MANIFEST_NAME).exists() and not folder.is_symlink()
            if is_hidden or is_output:
                folders.remove(folder.name)
            if is_output and not is_hidden and not in_stage and (of_folder := _status(folder)):
                files = {path: of for path in _files(folder) if (of := _status(path)) is not None}
                used = max(of.st_mtime for of in (of_folder, *files.values()))
                yield _Cached(folder, used, files)


def _files(folder: Path) -> list[Path]:
    """Return the files of an output that may go."""
    found = (Path(inner, name) for inner, _, names in os.walk(folder) for name in names)
    stay = {folder / name for name in _STAY}
    return [path for path in found if path not in stay]


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a file; None of one that has gone, or has its name by now."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None

"""Write a file or a folder whole or not at all; what is not finished, and whose it is."""

import hashlib
import math
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from tokflow.errors import TokflowError
from tokflow.store.listed_files import LATEST, LINKED_BYTES, forget_copies, freed_bytes, named_by
from tokflow.store.manifest import (
    MANIFEST_NAME,
    OWN_FOLDER,
    RUN_NAME,
    is_complete,
    is_output_name,
    read_manifest,
)

_TEMPORARY = re.compile(r"\..+\.([0-9a-f]{8})\.([0-9]{1,9})\.[0-9a-f]{8}\.tmp")
"""Names of what is not finished: of whom, on which machine and in which process."""


SYNCED_AT_ONCE = 8
"""Folders put on disk at the same time; as many threads as folders take more processor time."""


class Keeper(Protocol):
    """A store, as new folders know it."""

    def put(self, temporary: Path, folder: Path) -> None:
        """Put what is in a temporary folder where it cannot be lost, before it takes its name."""

    def link_equal(self, temporary: Path, folder: Path) -> None:
        """Let files in a temporary folder, just before it takes its name, be links to equal ones of
        the dataset."""

    def is_intact(self, folder: Path) -> bool:
        """Return whether a folder holds a finished output of which nothing is known to be wrong."""


@contextmanager
def new_folder(folder: Path, store: Keeper) -> Iterator[Path]:
    """Yield an empty temporary folder that becomes `folder`, in a store, when the block ends well.

    Like `NewFolders`, for a single folder.
    """
    with NewFolders() as new:
        with new.writing(folder, store) as temporary:
            yield temporary
        for error in new.commit().values():
            raise error


class NewFolders(ExitStack):
    """Folders that are written one after another and take their names together, so that the disk
    is waited for a few times and not once for every file.

    Everything in one, except the run's log, is on disk before it takes its name, so a reader sees
    all of it or nothing, whenever the process is killed or the power fails. Those that have not
    taken their names when the block ends are gone, and so are the folders above them that were made
    for them. Two processes may make the same folder at once: the first one's stays, the other's is
    thrown away, which loses nothing where equal names mean equal content. A damaged folder stays
    until the new one is whole, and is replaced by it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[Path, tuple[Path, Path, Keeper]] = {}
        """The folders as they were begun, each with the temporary one, its name, and its store."""

    @contextmanager
    def writing(self, folder: Path, store: Keeper, *, is_named: bool = True) -> Iterator[Path]:
        """Yield an empty temporary folder, which the block must fill, and write a manifest in; it
        becomes `folder` in a store, or unless it `is_named` one with the manifest's fingerprint."""
        made_for_it = list(takewhile(lambda parent: not parent.exists(), folder.parents))
        self.callback(remove_empty, made_for_it)
        temporary = begun_beside(folder)
        self.callback(forget_copies, temporary)
        self.callback(shutil.rmtree, temporary, ignore_errors=True)
        with naming(folder, temporary):
            # Another process that failed may have removed one above.
            os.makedirs(temporary)  # noqa: PTH103 (of many: a Path takes twice as long)
            yield temporary
            if not is_complete(temporary):
                raise TokflowError(
                    where=folder,
                    expected=f"a {MANIFEST_NAME} written last",
                    found="none",
                    remedy="this is a bug of the stage that wrote the folder; please report it",
                )
        name = folder.name if is_named else read_manifest(temporary).recipe.fingerprint[:16]
        self._written[folder] = temporary, folder.with_name(name), store

    def commit(self) -> dict[Path, Exception]:
        """Put on disk what was written, then let it take its name; return what kept a folder from
        that, such as a full disk, or ForeignOutputError where a newer tokflow made one that is
        there. Folders are as they were begun.

        Names are taken in this thread, so that nothing is renamed while it is thrown away.
        """
        errors: dict[Path, Exception] = {}

        def take(step: Callable[[Path, Path, Keeper], None], begun: Path) -> None:
            if begun in errors:
                return
            temporary, folder, store = self._written[begun]
            try:
                with naming(folder, temporary):
                    step(temporary, folder, store)
            except Exception as error:
                errors[begun] = error

        with ThreadPoolExecutor(SYNCED_AT_ONCE) as pool:
            each = pool.map if len(self._written) > 1 else map
            put = partial(take, lambda temporary, folder, store: store.put(temporary, folder))
            list(each(put, self._written))
            for begun in self._written:
                take(_take_name, begun)
            list(each(partial(take, lambda of, folder, store: sync(folder.parent)), self._written))
        return errors


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path; the file written there becomes `path` when the block ends well. For a
    file in `_tokflow/` it is beside the output, in which a killed process then leaves nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = begun_beside(path.parents[1] if path.parent.name == OWN_FOLDER else path)
    try:
        with naming(path, temporary):
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def naming(path: Path, temporary: Path) -> Iterator[None]:
    """Let errors of the system in the block name `path`, or a file in it, and nothing temporary.

    Those of writing name no file at all.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            name = temporary if error.filename is None else error.filename
            error.filename = str(name).replace(str(temporary), str(path), 1)
        raise


def is_leftover(path: Path, *, seconds: float) -> bool:
    """Return whether a process that is gone has left this unfinished: one of this machine, or
    another's where nothing in it has changed for `seconds`.

    Nobody here can tell whether a process of another machine lives.
    """
    name = _TEMPORARY.fullmatch(path.name)
    if name is None:
        return False
    if name[1] == machine():
        return not is_alive(int(name[2]))
    return _seconds_since(path) > seconds


@contextmanager
def in_use(folder: Path) -> Iterator[Path]:
    """Let `is_in_use` be true of a folder, which is made if need be, while the block works with
    what is in it; yield the mark that says so. A folder that is empty then goes."""
    made = list(takewhile(lambda above: not above.exists(), (folder, *folder.parents)))
    mark = begun_beside(folder / "writer")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        mark.touch()
        yield mark
    finally:
        mark.unlink(missing_ok=True)
        remove_empty(made)


def is_in_use(folder: Path, *, seconds: float) -> bool:
    """Return whether a process that has not ended works with what is in a folder: one of this
    machine, or another's where something in it has changed within `seconds`."""
    marks = [mark for path in _inside(folder) if (mark := _TEMPORARY.fullmatch(path.name))]
    if any(mark[1] == machine() and is_alive(int(mark[2])) for mark in marks):
        return True
    is_of_another = any(mark[1] != machine() for mark in marks)
    return is_of_another and _seconds_since(folder) <= seconds


def _inside(folder: Path) -> list[Path]:
    """Return what is in a folder; nothing where another process has just removed it."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return list(folder.iterdir())
    return []


def _seconds_since(path: Path) -> float:
    """Return how long ago something in a folder, or a file, changed last; 0 where another process
    has just finished or removed it."""
    try:
        return time.time() - max(each.lstat().st_mtime for each in (path, *path.rglob("*")))
    except FileNotFoundError:
        return 0


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, each in the next, up to the first that is not empty without them."""
    with suppress(OSError):  # it is not empty, or another process writes into it now
        for folder in folders:
            folder.rmdir()


def _take_name(temporary: Path, folder: Path, store: Keeper) -> None:
    """Rename `temporary`, in the place of a damaged folder if one is there.

    Raises: ForeignOutputError where a newer tokflow made the one that is there.
    """
    aside = None
    if not (folder.is_dir() and _is_same(folder, temporary, store)):
        store.link_equal(temporary, folder)
        if folder.is_dir():
            aside = begun_beside(folder)
            with suppress(FileNotFoundError):  # another process did so just now
                folder.rename(aside)
    try:
        temporary.rename(folder)
    except OSError:
        if not _is_same(folder, temporary, store):
            raise
    finally:
        if aside is not None:
            remove(aside)


def _is_same(folder: Path, temporary: Path, store: Keeper) -> bool:
    """Return whether `folder` is the whole output that `temporary` is, too."""
    if not store.is_intact(folder):
        return False
    there, new = read_manifest(folder), read_manifest(temporary)
    return there.recipe == new.recipe and there.dropped.keys() == new.dropped.keys()


def begun_beside(path: Path) -> Path:
    """Return a new name beside a path, for what is to become it; what killed processes of this
    machine left of earlier attempts is removed."""
    start = f".{path.name}.{machine()}."
    for leftover in _inside(path.parent):
        if leftover.name.startswith(start) and is_leftover(leftover, seconds=math.inf):
            remove(leftover)
    return path.parent / f"{start}{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp"


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all in it; nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def boot() -> str:
    """Return what tells apart the times that a machine was started; one word if it is no Linux."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return "unknown"


@cache
def machine() -> str:
    """Return what tells apart places in which a number may mean different processes: machines,
    also before and after they were started again, and containers."""
    names = [socket.gethostname(), boot()]
    with suppress(OSError):
        names.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.blake2b("\0".join(names).encode(), digest_size=4).hexdigest()


def is_alive(process: int) -> bool:
    """Return whether a process of this machine has not ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def sync_all(temporary: Path) -> None:
    """Put a folder and all in it on disk, except the run's log, on which nothing depends. Nobody
    may write any more to its large files, which may come to be in another output, too."""
    own = str(temporary / OWN_FOLDER)
    run = str(temporary / RUN_NAME)
    for inner, _, names in os.walk(temporary, topdown=False):
        for path in (f"{inner}{os.sep}{name}" for name in names):
            status = os.stat(path)  # noqa: PTH116 (of many files: a Path costs as much again)
            if status.st_size >= LINKED_BYTES and inner != own:
                os.chmod(path, status.st_mode & 0o555)  # noqa: PTH101 (as above)
            if path != run:
                sync(path)
        sync(inner)


def sync(path: Path | str) -> None:
    """Put a file or a folder on disk; what the disk refuses of a file is raised."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not Path(path).is_dir():  # some file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)


_SEGMENTS = re.compile(r"\.[0-9a-f]{16}\.segments(-here)?")
"""Names of folders of segments, shares of an output beside it that are kept until all are there."""

BLOCKS_PREFIX = ".blocks-"
"""Prefix of folders that keep blocks of remote raw files while these are read."""


def segments_folder(output: Path) -> Path:
    """Return the folder of the segments of an output that is not finished."""
    return output.parent / f".{output.name}.segments"


def folder_of_segments_here(output: Path) -> Path:
    """Return the folder of segments that never go to the URL that their output goes to."""
    return output.parent / f".{output.name}.segments-here"


def segment_folder(segments: Path, number: int) -> Path:
    """Return the folder of one segment in the folder of all."""
    return segments / f"{number:05d}"


def is_segments_folder(path: Path) -> bool:
    """Return whether a folder has the name of one of segments, which no partition key has."""
    match = _SEGMENTS.fullmatch(path.name)
    return match is not None and not match[1]


def unfinished_here(folder: Path, *, seconds: float, with_segments: bool = True) -> dict[Path, int]:
    """Return what no run has finished in the folder of a dataset on this disk, and the bytes that
    are free without it; neither outputs nor anything hidden is entered. Of a store at a URL that
    tells which segments are in use, not here."""
    found: list[Path] = []
    for inner, folders, files in os.walk(folder):
        for path in (Path(inner, name) for name in (*folders, *files) if name.startswith(".")):
            if match := _SEGMENTS.fullmatch(path.name):
                is_left = (with_segments or match[1]) and not is_in_use(path, seconds=seconds)
            else:
                is_blocks = path.name.startswith(BLOCKS_PREFIX)
                is_left = is_blocks or is_leftover(path, seconds=seconds)
            found += [path] if is_left else []
        folders[:] = [of for of in folders if not of.startswith(".") and not is_output_name(of)]
    return freed_bytes(sorted(found))


def remove_output(folder: Path, *, seconds: float) -> None:
    """Remove an output that is not in use, or what is not finished; the manifest first, so that no
    reader takes half of it for whole."""
    if is_in_use(folder, seconds=seconds):
        return  # a build has begun since
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink()
        return
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    latest = folder.parent / LATEST
    if named_by(latest) == folder.resolve():
        latest.unlink()
    shutil.rmtree(folder)
    remove_empty(folder.parents)

"""Compare what an output is made from with its manifests before the output is committed.

Else a bit that flips in the store becomes wrong training data with valid checksums.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from tokflow.errors import CorruptOutputError, TokflowError
from tokflow.store.listed_files import Stamp, arrived, broken_file
from tokflow.store.manifest import FileEntry
from tokflow.store.store import Store, Stored

T = TypeVar("T")

MAX_NAMED = 20
"""Damaged files that an error lists."""

_whole = arrived
"""Files that this process made or found whole, by path, and how they looked then."""

_caches: list[Callable[[], object]] = []
"""Functions that clear what this process keeps of files it has read."""


class ReadAgainError(CorruptOutputError):
    """A damaged copy of a file may have been read. It is gone, and a whole one can be had: what was
    made of it must be made again from the start, see `once_more`."""


def once_more(make: Callable[[], T]) -> T:
    """Return what `make` returns, called a second time where a damaged copy of a file was read.

    Raises: ReadAgainError, a CorruptOutputError, where the second time ends so, too.
    """
    try:
        return make()
    except ReadAgainError:
        return make()


def clear_when_damaged(clear: Callable[[], object]) -> None:
    """Call a function, which empties a cache of this process, whenever a damaged file is found:
    what is cached may have been read from it."""
    _caches.append(clear)


@contextmanager
def checked(*outputs: Stored, only: Container[str] | None = None) -> Iterator[None]:
    """Compare the files of `outputs`, or of them those named in `only`, with their manifests.

    For the block that reads them, which must end before what it made is committed. Tables and
    JSON are compared before the block begins, since a library that parses damage may do
    anything; plain numbers (`.bin`) by a thread while the block works. An error of the block
    gives way to the damage that may be its cause.

    The bytes compared are those that were there when the block began. They are never replaced
    by a whole copy in between: a damaged copy in the cache of a store at a URL goes when the error
    is raised. Size, times and inode tell whether a file was replaced during the block.

    Each file is read once per process, and not at all if this process made it: what was hashed
    while it was written is taken to be there still. A file that was written to since, as its size,
    times and inode tell, is read again, at the end of the block too.

    Raises: CorruptOutputError that names the damaged files; ReadAgainError where whole copies of
    all of them can be had.
    """
    files = _files(outputs, only)
    numbers = [file for file in files if file.name.endswith(".bin")]
    _raise_damage(_here(file for file in files if not file.name.endswith(".bin")))
    looks = ((file, file.stamp()) for file in files)
    unknown = {of.path: look for of, look in looks if look and not of.is_whole(look)}
    ahead = threading.Thread(target=_look_ahead, args=(numbers, unknown), daemon=True)
    if numbers:
        ahead.start()
    cause: Exception | None = None
    try:
        yield
    except Exception as error:
        cause = error
    if numbers:
        ahead.join()
    _raise_damage(files, unknown, cause=cause)
    if cause is not None:
        raise cause


@contextmanager
def report_damage_on_error(*outputs: Stored, only: Container[str] | None = None) -> Iterator[None]:
    """Let an error of the block, which reads files of `outputs`, give way to the damage that may be
    its cause. The files are compared with their manifests then, and only then: damage that makes no
    error is not found.

    Raises: as `checked`.
    """
    try:
        yield
    except TokflowError:
        raise
    except Exception as error:
        _raise_damage(_here(_files(outputs, only)), cause=error)
        raise


def raise_damage(*outputs: Stored) -> None:
    """Compare all files with their manifests.

    Raises: as `checked`.
    """
    _raise_damage(_here(_files(outputs, None)))


def check_files(*outputs: Stored, only: Container[str] | None = None) -> None:
    """Compare files with their manifests before anything is read; damaged copies in the cache of a
    store at a URL are replaced.

    Raises: CorruptOutputError that names the damaged files.
    """
    files = _files(outputs, only)
    once_more(lambda: _raise_damage(_here(files)))


def check_files_here(*outputs: Stored) -> None:
    """Compare files with their manifests before anything is read, except those that are only at a
    URL: whoever made them hashed them, and whoever reads them compares them. Damaged copies in the
    cache go.

    Raises: CorruptOutputError that names the damaged files.
    """
    once_more(partial(_raise_damage, _files(outputs, None)))


def read_compared(output: Stored, name: str) -> bytes:
    """Return the bytes of a small file, which are those of its manifest.

    Raises: CorruptOutputError.
    """
    [file] = _files([output], {name})

    def read() -> bytes:
        data = output.store.file(output, name).read_bytes()
        if hashlib.sha256(data).hexdigest() != file.entry.sha256:
            _raise_damage([file], {file.path: None})
        return data

    return once_more(read)


def trust_files(output: Stored) -> None:
    """Remember that this process has just hashed the files of `output` while it made them."""
    for file in _files([output], None):
        if (stamp := file.stamp()) is not None:
            _whole[file.path] = file.entry, stamp


Whole: TypeAlias = Mapping[str, tuple[FileEntry, Stamp]]
"""Files that were found whole or hashed while they were made, by path, and how they looked then."""


def known_whole(outputs: Iterable[Stored]) -> Whole:
    """Return what this process knows of the files of outputs, for another process to take on."""
    paths = (file.path for file in _files(outputs, None))
    return {path: _whole[path] for path in paths if path in _whole}


def take_as_whole(files: Whole) -> None:
    """Take on what another process knows."""
    _whole.update(files)


@dataclass(frozen=True, slots=True)
class _File:
    """One file that a manifest lists."""

    output: Stored
    name: str
    entry: FileEntry
    path: str

    def stamp(self) -> Stamp | None:
        """Return how the file looks now; None where there is none."""
        try:
            return Stamp.of(os.stat(self.path))  # noqa: PTH116 (of many files: a Path costs more)
        except OSError:
            return None

    def is_whole(self, look: Stamp | None) -> bool:
        """Return whether it is known that the file was whole when it looked so."""
        return look is not None and _whole.get(self.path) == (self.entry, look)

    def problem(self) -> CorruptOutputError | None:
        """Return what is wrong with the file on this disk, read if that is not known; None where
        it is only at a URL. Nothing is fetched."""
        look = self.stamp()
        if look is None and self.output.store.may_come(Path(self.path)):
            return None
        if self.is_whole(look):
            return None
        problem = broken_file(self.output.folder, self.name, self.entry)
        if problem is None and look is not None and look == self.stamp():
            _whole[self.path] = self.entry, look
        return problem

    def was_replaced(self, before: Stamp | None) -> bool:
        """Return whether there is another file now, or none; links to it are no change."""
        now = self.stamp()
        if now is None or before is None:
            return True
        return replace(now, ctime_ns=0) != replace(before, ctime_ns=0)


def _files(outputs: Iterable[Stored], only: Container[str] | None) -> list[_File]:
    return [
        _File(output, name, entry, f"{output.folder}/{name}")
        for output in outputs
        for name, entry in output.manifest.files.items()
        if only is None or name in only
    ]


def _here(files: Iterable[_File]) -> list[_File]:
    """Return files when those at a URL are on this disk."""
    files = list(files)
    for output, of_output in groupby(files, key=lambda file: file.output):
        if not output.store.is_here:
            output.store.bring([Path(file.path) for file in of_output])
    return files


def _look_ahead(files: Iterable[_File], unknown: dict[str, Stamp]) -> None:
    """Fetch and compare what is not known yet, and remove from `unknown` what was whole as it
    looked there; what is found damaged is found again at the end."""
    for file in files:
        with suppress(TokflowError):
            file.output.store.file(file.output, file.name)
            if file.problem() is None and file.is_whole(unknown.get(file.path)):
                del unknown[file.path]


def _raise_damage(
    files: Iterable[_File],
    unknown: Mapping[str, Stamp | None] = MappingProxyType({}),
    *,
    cause: Exception | None = None,
) -> None:
    """Raise the error that names the damaged files, and those that were read as they looked in
    `unknown` and replaced since; let damaged copies go where others can be had."""
    problems, can_come = [], []
    for file in files:
        problem, is_replaced = file.problem(), False
        if problem is None and file.path in unknown and file.was_replaced(unknown[file.path]):
            problem, is_replaced = _replaced(file), True
        if problem is not None:
            is_copy = not is_replaced and file.output.store.forget(Path(file.path))
            problems.append(_of_copy(problem, file.output.store) if is_copy else problem)
            can_come.append(is_copy or is_replaced)
    if problems:
        for clear in _caches:
            clear()
        kind = ReadAgainError if all(can_come) else CorruptOutputError
        first, *others = problems
        named = [first.found, *(str(other) for other in others[: MAX_NAMED - 1])]
        more = [f"and {len(problems) - MAX_NAMED:,} more"] if len(problems) > MAX_NAMED else []
        fields = {**first.fields(), "found": "\n".join([*named, *more])}
        raise kind(**fields) from cause


def _replaced(file: _File) -> CorruptOutputError:
    return CorruptOutputError(
        where=file.path,
        expected="the file that was there when reading began",
        found="another, or none",
        remedy="run it again while nothing else writes to the store",
    )


def _of_copy(problem: CorruptOutputError, store: Store) -> CorruptOutputError:
    """Return the error of a file at a URL whose copy on this disk was damaged."""
    return CorruptOutputError(
        where=problem.where,
        expected=problem.expected,
        found=f"{problem.found} in the cache",
        remedy="that copy was removed: run it again, and another one is fetched; if this happens "
        f"often, the disk of {store.root.parent} is failing",
    )

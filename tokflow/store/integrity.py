"""Compare what an output is made from with its manifests before the output is committed.

Else a bit that flips in the store becomes wrong training data with valid checksums.
"""

import os
import threading
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from tokflow.errors import CorruptOutputError, TokflowError
from tokflow.store.listed_files import broken_file
from tokflow.store.manifest import FileEntry, Manifest
from tokflow.store.remote.cached_files import arrived, fetched
from tokflow.store.remote.damage import drop_cached
from tokflow.store.remote.places import place_of
from tokflow.store.stamp import Stamp

MAX_NAMED = 20
"""Damaged files that an error lists."""

_whole = arrived
"""Files that this process made or found whole, by path, and how they looked then."""


class Stored(Protocol):
    """An output in a store: a tokenizer, a token shard, a split, sequences, an export."""

    @property
    def folder(self) -> Path:
        """The folder of its files."""

    @property
    def manifest(self) -> Manifest:
        """Sizes and checksums that its files must have."""


@contextmanager
def checked(*outputs: Stored, only: Container[str] | None = None) -> Iterator[None]:
    """Compare the files of `outputs`, or of them those named in `only`, with their manifests.

    For the block that reads them, which must end before what it made is committed. Tables and
    JSON are compared before the block begins, since a library that parses damage may do
    anything; plain numbers (`.bin`) by a thread while the block works. An error of the block
    gives way to the damage that may be its cause.

    Each file is read once per process, and not at all if this process made it: what was hashed
    while it was written is taken to be there still. A file that was written to since, as its size,
    times and inode tell, is read again, at the end of the block too.

    Raises: CorruptOutputError that names the damaged files.
    """
    files = _files(outputs, only)
    numbers = [file for file in files if file.name.endswith(".bin")]
    _raise_damage(file for file in files if not file.name.endswith(".bin"))
    ahead = threading.Thread(target=_look_ahead, args=(numbers,), daemon=True) if numbers else None
    if ahead is not None:
        ahead.start()
    cause: Exception | None = None
    try:
        yield
    except Exception as error:
        cause = error
    if ahead is not None:
        ahead.join()
    _raise_damage(files, cause=cause)
    if cause is not None:
        raise cause


@contextmanager
def damage_told(*outputs: Stored, only: Container[str] | None = None) -> Iterator[None]:
    """Let an error of the block, which reads files of `outputs`, give way to the damage that may be
    its cause. The files are compared with their manifests then, and only then: damage that makes no
    error is not found.

    Raises: CorruptOutputError that names the damaged files.
    """
    try:
        yield
    except TokflowError:
        raise
    except Exception as error:
        _raise_damage(_files(outputs, only), cause=error)
        raise


def check_files(*outputs: Stored, only: Container[str] | None = None) -> None:
    """Compare files with their manifests, as `checked` does, before anything else is done.

    Raises: CorruptOutputError that names the damaged files.
    """
    _raise_damage(_files(outputs, only))


def check_files_here(*outputs: Stored) -> None:
    """Compare files with their manifests, as `check_files` does, but for those that are at a URL
    alone: what made them hashed them, and who reads them compares them.

    Raises: CorruptOutputError that names the damaged files.
    """
    _raise_damage(file for file in _files(outputs, None) if not file.is_elsewhere)


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

    folder: Path
    name: str
    entry: FileEntry
    path: str

    def stamp(self) -> Stamp | None:
        """Return how the file looks now; None where there is none."""
        try:
            return Stamp.of(os.stat(self.path))  # noqa: PTH116 (of many files: a Path costs more)
        except OSError:
            return None

    @property
    def is_elsewhere(self) -> bool:
        """True if it is at a URL and not on this disk."""
        return self.stamp() is None and place_of(Path(self.path)) is not None

    def problem(self) -> CorruptOutputError | None:
        """Return what is wrong with the file, read if that is not known; with what is at the URL of
        its output, where one on this disk is damaged."""
        problem = self._problem()
        if problem is not None and drop_cached(Path(self.path)):
            return self._problem()
        return problem

    def _problem(self) -> CorruptOutputError | None:
        try:
            fetched(Path(self.path))
        except CorruptOutputError as error:
            return error
        stamp = self.stamp()
        if stamp is not None and _whole.get(self.path) == (self.entry, stamp):
            return None
        problem = broken_file(self.folder, self.name, self.entry)
        if problem is None and stamp is not None:
            _whole[self.path] = self.entry, stamp
        return problem


def _files(outputs: Iterable[Stored], only: Container[str] | None) -> list[_File]:
    return [
        _File(output.folder, name, entry, f"{output.folder}/{name}")
        for output in outputs
        for name, entry in output.manifest.files.items()
        if only is None or name in only
    ]


def _look_ahead(files: Iterable[_File]) -> None:
    """Read what is not known yet; what is found damaged is found again by who asks."""
    for file in files:
        with suppress(TokflowError):
            file.problem()


def _raise_damage(files: Iterable[_File], *, cause: Exception | None = None) -> None:
    problems = [problem for file in files if (problem := file.problem())]
    if problems:
        first, *others = problems
        named = [first.found, *(str(other) for other in others[: MAX_NAMED - 1])]
        more = [f"and {len(problems) - MAX_NAMED:,} more"] if len(problems) > MAX_NAMED else []
        fields = {**first.fields(), "found": "\n".join([*named, *more])}
        raise CorruptOutputError(**fields) from cause

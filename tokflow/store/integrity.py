"""Compare what an output is made from with its manifests before the output is committed.

Else a bit that flips in the store becomes wrong training data with valid checksums.

Files of an output can be dropped for good: its manifest lists them under `dropped`, with their
sizes and checksums. The output is whole without them, and whoever makes it again must make the same
bytes.
"""

import os
import threading
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType
from typing import Protocol, Self, TypeAlias, TypeVar

from tokflow.errors import CorruptOutputError, TokflowError
from tokflow.store.atomic import begun_beside, naming, sync
from tokflow.store.listed_files import Stamp, arrived, broken_file
from tokflow.store.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    read_manifest,
    read_run,
    sealed,
    without_files,
)
from tokflow.store.versions import changed_since

T = TypeVar("T")

MAX_NAMED = 20
"""Damaged files that an error lists."""

clear_when_damaged: list[Callable[[], object]] = []
"""Functions that empty caches of this process of what it has read in files of outputs."""


class Copies(Protocol):
    """A store, as far as its files are compared."""

    is_cached: bool

    @property
    def root(self) -> Path:
        """The folder of its outputs on this disk."""

    def bring(self, files: "Iterable[tuple[Stored, str]]") -> None:
        """Bring files of outputs to this disk."""

    def forget(self, path: Path) -> bool:
        """Drop a damaged copy of a file; return whether another can come."""


class Stored(Protocol):
    """An output in a store, as far as its files are compared."""

    @property
    def store(self) -> Copies:
        """The store that it is in."""

    @property
    def folder(self) -> Path:
        """The folder of its files on this disk."""

    @property
    def manifest(self) -> Manifest:
        """Sizes and checksums that they must have."""


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


@dataclass(eq=False)
class Reading:
    """Files of outputs that are asked for while something is made from them: they are compared with
    their manifests, so that nothing is made from a bit that flipped.

        with Reading():
            ...  # read files by `StoredOutput.file`, and write
        # then commit

    All files count that `StoredOutput.file` gives in this process until the block ends, in any
    thread but those that read for a block of their own: several builds may be under way. Tables and
    JSON are compared before they are given away, since a library that parses damage may do
    anything; plain numbers (`.bin`) by a thread while the block works. An error of the block gives
    way to the damage that may be its cause.

    The bytes compared are those that were given. Nothing here fetches, so they are never replaced
    by a whole copy in between: a damaged copy of numbers in the cache of a store at a URL goes when
    the error is raised. Size, times and inode tell whether a file was replaced since it was given.

    Each file is read once per process, and not at all if this process made it: what was hashed
    while it was written is taken to be there still. A file that was written to since, as its size,
    times and inode tell, is read again, at the end of the block too.

    Raises: CorruptOutputError that names the damaged files; ReadAgainError where whole copies of
    all of them can be had.
    """

    _given: dict[str, "_File"] = field(default_factory=dict)
    _unknown: dict[str, Stamp] = field(default_factory=dict)
    """Stamps, when they were given, of files that were not known to be whole then."""
    _numbers: SimpleQueue["_File | None"] = field(default_factory=SimpleQueue)
    _comparing: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a file is noted, and while the block ends, after which none is."""
    thread: int = field(default_factory=threading.get_ident)
    """Identity of the thread of the block."""

    def __enter__(self) -> Self:
        _open.append(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._lock:
            _open.remove(self)
        self._numbers.put(None)
        if error is not None and not isinstance(error, Exception):
            return
        if self._comparing is not None:
            self._comparing.join()
        _raise_damage(self._given.values(), self._unknown, cause=error)

    def give(self, file: "_File") -> None:
        """Take a file that is given away now. Raises: as the block, of a table or JSON."""
        look = Stamp.of_output(file.path)
        if look is not None and not file.is_whole(look) and not file.name.endswith(".bin"):
            _raise_damage([file])
        with self._lock:
            if self not in _open:
                return
            self._given[file.path] = file
            if look is None or file.is_whole(look):
                return
            arrived.pop(file.path, None)  # of a file as it was, which a link would now excuse
            self._unknown.setdefault(file.path, look)
            self._numbers.put(file)
            if self._comparing is None:
                self._comparing = threading.Thread(target=self._compare, daemon=True)
                self._comparing.start()

    def _compare(self) -> None:
        """Compare numbers, one file after another; what is damaged is found again at the end."""
        while (file := self._numbers.get()) is not None:
            with suppress(TokflowError):
                if file.problem() is None and file.is_whole(self._unknown.get(file.path)):
                    del self._unknown[file.path]


_open: list[Reading] = []
"""Readings whose blocks have not ended."""


def given(output: Stored, name: str) -> None:
    """Note that a file of an output is given away, which is on this disk if it is anywhere.

    Raises: as `Reading`.
    """
    if _open and (entry := output.manifest.files.get(name)) is not None:
        everyone = tuple(_open)
        own = [reading for reading in everyone if reading.thread == threading.get_ident()]
        for reading in own or everyone:
            reading.give(_File(output, name, entry, f"{output.folder}/{name}"))


def is_compared() -> bool:
    """Return whether what is read now is compared with its manifest."""
    return bool(_open)


@contextmanager
def report_damage_on_error(*outputs: Stored) -> Iterator[None]:
    """Let an error of the block, which reads files of `outputs`, give way to the damage that may be
    its cause. The files are compared with their manifests then, and only then: damage that makes no
    error is not found.

    Raises: as `Reading`.
    """
    try:
        yield
    except TokflowError:
        raise
    except Exception as error:
        raise_damage(*outputs, cause=error)
        raise


def raise_damage(
    *outputs: Stored, only: Container[str] | None = None, cause: Exception | None = None
) -> None:
    """Compare files with their manifests, all or some by their names, when those at a URL are on
    this disk.

    Raises: as `Reading`.
    """
    for output in outputs:
        names = output.manifest.files
        output.store.bring([(output, name) for name in names if only is None or name in only])
    _raise_damage(_files(outputs, only), cause=cause)


def check_files(*outputs: Stored, only: Container[str] | None = None, fetches: bool = True) -> None:
    """Compare files with their manifests before anything is read; damaged copies in the cache of a
    store at a URL are replaced.

    Unless it `fetches`, files that are only at a URL are left out: whoever made them hashed them,
    and whoever reads them compares them.

    Raises: CorruptOutputError that names the damaged files.
    """
    if fetches:
        once_more(lambda: raise_damage(*outputs, only=only))
    else:
        once_more(lambda: _raise_damage(_files(outputs, only)))


def trust_files(output: Stored) -> None:
    """Remember that this process has just hashed the files of `output` while it made them."""
    for file in _files([output], None):
        if (stamp := Stamp.of_output(file.path)) is not None:
            arrived[file.path] = file.entry, stamp


Whole: TypeAlias = Mapping[str, tuple[FileEntry, Stamp]]
"""Files that were found whole or hashed while they were made, by path, and how they looked then."""


def known_whole(outputs: Iterable[Stored]) -> Whole:
    """Return what this process knows of the files of outputs, for another process to take on."""
    paths = (file.path for file in _files(outputs, None))
    return {path: arrived[path] for path in paths if path in arrived}


@dataclass(frozen=True, slots=True)
class _File:
    """One file that a manifest lists."""

    output: Stored
    name: str
    entry: FileEntry
    path: str

    def is_whole(self, look: Stamp | None) -> bool:
        """Return whether it is known that the file was whole when it looked so."""
        entry, stamp = arrived.get(self.path, (None, None))
        return stamp is not None and entry == self.entry and stamp.is_still(look)

    def problem(self) -> CorruptOutputError | None:
        """Return what is wrong with the file on this disk, read if that is not known; None where
        it is only at a URL. Nothing is fetched."""
        look = Stamp.of_output(self.path)
        if look is None and self.output.store.is_cached:
            return None
        if self.is_whole(look):
            return None
        problem = broken_file(self.output.folder, self.name, self.entry)
        if problem is None and look is not None and look.is_still(Stamp.of_output(self.path)):
            arrived[self.path] = self.entry, look
        return problem


def _files(outputs: Iterable[Stored], only: Container[str] | None) -> list[_File]:
    return [
        _File(output, name, entry, f"{output.folder}/{name}")
        for output in outputs
        for name, entry in output.manifest.files.items()
        if only is None or name in only
    ]


def _raise_damage(
    files: Iterable[_File],
    unknown: Mapping[str, Stamp | None] = MappingProxyType({}),
    *,
    cause: BaseException | None = None,
) -> None:
    """Raise the error that names the damaged files, and those that were read as they looked in
    `unknown` and replaced since; remove damaged copies where whole ones can be had."""
    problems, can_come = [], []
    for file in files:
        problem, store = file.problem(), file.output.store
        is_copy = problem is not None and store.forget(Path(file.path))
        if problem is not None and is_copy:
            new = {
                "found": f"{problem.found} in the cache",
                "remedy": "that copy was removed: run it again, and another one is fetched; if "
                f"this happens often, the disk of {store.root.parent} is failing",
            }
            problem = CorruptOutputError(**problem.fields() | new)
        elif problem is None and file.path in unknown:
            looks = unknown[file.path], Stamp.of_output(file.path)
            before, now = (look and replace(look, ctime_ns=0) for look in looks)  # links may come
            if now is None or now != before:
                is_copy = True
                problem = CorruptOutputError(
                    where=file.path,
                    expected="the file that was there when reading began",
                    found="another, or none",
                    remedy="run it again while nothing else writes to the store",
                )
        if problem is not None:
            problems.append(problem)
            can_come.append(is_copy)
    if problems:
        for clear in clear_when_damaged:
            clear()
        kind = ReadAgainError if all(can_come) else CorruptOutputError
        first, *others = problems
        named = [first.found, *(str(other) for other in others[: MAX_NAMED - 1])]
        more = [f"and {len(problems) - MAX_NAMED:,} more"] if len(problems) > MAX_NAMED else []
        fields = {**first.fields(), "found": "\n".join([*named, *more])}
        raise kind(**fields) from cause


def drop_here(folder: Path, manifest: Manifest, names: Collection[str]) -> None:
    """Remove files from an output of this disk, after its manifest says so; `manifest`: the one
    that it was read with.

    A process that is killed meanwhile leaves a whole output; what of it is too much goes when this
    is called again. Whatever another process puts in the place of the output stays as it is.
    """
    now = without_files(manifest, names)
    with suppress(FileNotFoundError):
        # A descriptor stays that of this folder, whatever comes to have its name.
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            there = read_manifest(folder)
            if there == manifest != now:
                _replace_manifest(folder, now, place)
            if there in (manifest, now):
                for name in now.dropped:
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=place)
        finally:
            os.close(place)


def _replace_manifest(folder: Path, manifest: Manifest, place: int) -> None:
    """Put another manifest into a folder, open as `place`, in one step."""
    temporary = begun_beside(folder)  # where a killed process leaves nothing in the output
    try:
        with naming(folder / MANIFEST_NAME, temporary):
            temporary.write_bytes(sealed(manifest.fields()))
            sync(temporary)
            os.replace(temporary, MANIFEST_NAME, dst_dir_fd=place)
            sync((folder / MANIFEST_NAME).parent)
    finally:
        temporary.unlink(missing_ok=True)


def check_made_again(temporary: Path, place: Path, dropped: Mapping[str, FileEntry]) -> None:
    """Make sure that an output which was made again has the files that were `dropped` of it, for
    splits and exports were made from those.

    `place`: the folder of all its versions. Raises: CorruptOutputError.
    """
    if not dropped:
        return
    manifest = read_manifest(temporary)
    found = manifest.files
    if other := [name for name in dropped if found.get(name) != dropped[name]]:
        folder, name = place / manifest.recipe.fingerprint[:16], other[0]
        changes = changed_since([read_run(folder).get("versions", {})])
        since = changes or ["no library has another version: perhaps what a function imports"]
        raise CorruptOutputError(
            where=folder / name,
            expected=f"the tokens that were dropped, {_shown(dropped[name])}",
            found=f"{_shown(found.get(name))}, made again of the same files ({'; '.join(since)})",
            remedy="put back what it was, or make everything anew: set documents.transform_version "
            "if a transform imports it, else remove the dataset's folder in the store",
        )


def _shown(entry: FileEntry | None) -> str:
    return "none" if entry is None else f"{entry.num_bytes:,} bytes, sha256 {entry.sha256[:16]}…"

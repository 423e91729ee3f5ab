"""The only door to files: a store finds outputs, gives their files, and takes new ones.

`Store` is a folder of this disk, `remote.remote_store.RemoteStore` one at a URL with a folder of
this disk through which it is reached. A reader holds a `StoredOutput` and asks it for files by
their names; where they lie, nobody outside of `store/` knows.
"""

import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tokflow.errors import CorruptOutputError, MissingOutputError, TokflowError
from tokflow.store import atomic, listed_files
from tokflow.store.config import expanded
from tokflow.store.integrity import ReadAgainError, Stored, drop_here, given
from tokflow.store.listed_files import Stamp, broken_files, unlisted_files
from tokflow.store.manifest import (
    MANIFEST_NAME,
    OWN_FOLDER,
    Manifest,
    Recipe,
    damaged,
    read_manifest,
    read_run,
)


@dataclass(frozen=True, repr=False)
class Store:
    """Outputs below a folder of this disk, all of them here.

    Stores of the same folder are equal. Goes to another process as the name of its folder.
    """

    root: Path
    """The folder of the outputs on this disk."""

    is_cached = False
    """Whether its files on this disk are copies in a cache, which come when they are asked for and
    go when it is full. Then remote raw files are not fetched into it, but read where they are."""

    checked_at_once = 1
    """Outputs whose files `problems` reads at the same time."""

    sample_bytes = 2**29
    """Most bytes read of its files to draw a sample of all: a second or two."""

    @property
    def name(self) -> str:
        """The name of the store in messages: its folder, or its URL."""
        return self.shown(self.root)

    @property
    def most_bytes(self) -> int:
        """Bytes that it has room for on this disk, of files that come when they are asked for."""
        return 2**63 - 1

    def at(self, base: Path) -> "Store":
        """Return the store whose folder, if it is relative, begins at another."""
        return Store((base / expanded(self.root)).resolve())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def shown(self, path: Path) -> str:
        """Return the name of a path of this store in messages."""
        return str(path)

    def uri(self, path: Path) -> str:
        """Return the URI of a path of this store."""
        return path.absolute().as_uri()

    # Outputs are found.

    def read(self, folder: Path) -> "StoredOutput":
        """Return the finished output in a folder. Raises: as `read_manifest`."""
        return StoredOutput(self, folder, read_manifest(folder))

    def find(
        self, folder: Path, stage: str, fingerprint: str, recipe: Recipe | None = None
    ) -> "StoredOutput":
        """Return the output of a stage with a fingerprint; `recipe`: the one that has it, where it
        is known. Raises: as `read_manifest`, CorruptOutputError also for another output."""
        manifest = read_manifest(folder, recipe)
        if (manifest.recipe.stage, manifest.recipe.fingerprint) != (stage, fingerprint):
            found = f"{manifest.recipe.stage} with {manifest.recipe.fingerprint[:16]}…"
            raise damaged(folder, f"{stage} with the fingerprint {fingerprint[:16]}…", found)
        return StoredOutput(self, folder, manifest)

    def check(self, output: Stored) -> None:
        """Make sure that no file of an output is missing, cut short or known to be damaged.

        No content is read: `integrity` compares checksums. Raises: CorruptOutputError.
        """
        for name, entry in output.manifest.files.items():
            try:  # of many files: a Path costs as much again
                num_bytes = os.stat(f"{output.folder}/{name}").st_size  # noqa: PTH116
            except (FileNotFoundError, NotADirectoryError):
                num_bytes = None
            if num_bytes != entry.num_bytes:
                found = "no file" if num_bytes is None else f"{num_bytes:,}"
                raise damaged(output.folder / name, f"{entry.num_bytes:,} bytes", found)

    def is_intact(self, folder: Path) -> bool:
        """Return whether a folder holds a finished output that `check` has nothing against, and
        that is not known to be damaged.

        Raises: ForeignOutputError for one of a newer tokflow, which is neither absent nor damaged.
        """
        try:
            self.check(self.read(folder))
        except (MissingOutputError, CorruptOutputError):
            return False
        return not self.is_known_damaged(folder)

    def is_known_damaged(self, folder: Path) -> bool:
        """Return whether a file of an output could not be had, and nobody made it again since.
        Readers may try again; a run makes the output anew."""
        return False

    def refresh(self, folder: Path) -> None:
        """Learn of outputs in a folder and below it that other machines have made or removed."""

    def refresh_dataset(self, path: Path) -> None:
        """Learn of all outputs of the dataset that a path is in, so that what is not there can be
        told from what is."""

    def refresh_outputs(self, folders: Iterable[Path]) -> None:
        """Learn of these outputs alone, whatever is known of them."""

    def look_for(self, folders: Iterable[Path], *, below: Path | None = None) -> None:
        """Learn of those of these outputs that are not known, or of many by looking at all `below`
        a folder; what goes wrong goes wrong again where one is asked for."""

    def problems(self, outputs: Sequence["StoredOutput"]) -> list[list[TokflowError]]:
        """Return of each output what is wrong with its files as they lie in the store itself,
        every byte of them read."""
        return [[*broken_files(of.folder, of.manifest)] for of in outputs]

    def unlisted(self, output: "StoredOutput") -> list[str]:
        """Return the names of files in the folder of an output that its manifest does not list."""
        return unlisted_files(output.folder, output.manifest)

    def marks(self, folder: Path, manifest: Manifest) -> object:
        """Return a value that changes as soon as a file of an output does."""
        paths = [f"{folder}/{name}" for name in (MANIFEST_NAME, *manifest.files)]
        return [Stamp.of_output(path) for path in paths]

    def note_damage(self, folder: Path) -> None:
        """Let a run make an output again, of which a file is not as its manifest says."""

    def note_lacking(self, folders: Iterable[Path]) -> int:
        """Return of how many of these outputs files are not there with the sizes of their
        manifests, which nothing that is looked at otherwise tells; a run makes them again."""
        return 0

    def watched(self, folder: str, *, is_deep: bool) -> Iterator[str]:
        """Yield paths, one of which has another time once a file of an output was deleted;
        `is_deep`: of an export, which may have folders of its own."""
        if is_deep:
            yield from (path for path, _, _ in os.walk(folder))
        else:
            yield from (folder, f"{folder}/{OWN_FOLDER}")

    # Files are read. `StoredOutput` calls these.

    def file(self, output: Stored, name: str) -> Path:
        """Return a file of an output, which is on this disk now."""
        return output.folder / name

    def bring(self, files: Iterable[tuple[Stored, str]]) -> None:
        """Bring files of outputs, by their names, to this disk, several at once; nothing if they
        are here. Raises: as `StoredOutput.file`."""

    def fetching(
        self, outputs: Iterable[Stored], *, has_numbers: bool
    ) -> AbstractContextManager[None]:
        """Let files of outputs come that the block reads: tables several at once before it, and, if
        it `has_numbers`, these meanwhile, one after another in the order of the outputs."""
        return nullcontext()

    def is_far(self, output: Stored, name: str) -> bool:
        """Return whether a file is worth being read in ranges: a large one that is not here."""
        return False

    def open_lazily(self, output: Stored, name: str) -> BinaryIO:
        """Return a file of an output, open for a reader of little of it, such as a header, or a
        footer and a row group."""
        return (output.folder / name).open("rb")

    def far_numbers(self, output: Stored, name: str, *of: Any) -> npt.NDArray[Any] | None:
        """Return `LazyNumbers` of a file that is far, given what they are; None of any other."""
        return None

    def link(self, output: Stored, name: str, new: Path) -> None:
        """Let `new`, a file of an output that is being made, be one of another, too, without a copy
        where that is possible."""
        listed_files.link_file(output.folder / name, new, output.manifest.files[name])

    def forget(self, path: Path) -> bool:
        """Drop a damaged copy of a file; return whether another can come."""
        return False

    def run(self, folder: Path) -> dict[str, Any]:
        """Return what is known of the run that made an output; empty where nothing is."""
        return read_run(folder)

    def fetch_runs(self, folders: Iterable[Path]) -> None:
        """Bring what is known of the runs that made outputs, several at once."""

    # Outputs are written.

    def put(self, temporary: Path, folder: Path) -> None:
        """Put what is in a temporary folder where it cannot be lost, before it takes its name."""
        atomic.sync_all(temporary)

    def link_equal(self, temporary: Path, folder: Path) -> None:
        """Let files in a temporary folder, just before it takes its name, be links to equal ones of
        the dataset."""
        for changed in listed_files.link_equal(temporary, folder):
            atomic.sync(changed)

    def point_latest(self, folder: Path) -> None:
        """Let `latest` beside an export lead to it, in one step. Raises: OSError, also where
        anything else has that name."""
        link = folder.parent / listed_files.LATEST
        if listed_files.named_by(link) == folder.resolve():
            return
        temporary = atomic.begun_beside(link)
        try:
            with atomic.naming(link, temporary):
                listed_files.make_latest(temporary, folder.name)
                temporary.replace(link)
        finally:
            temporary.unlink(missing_ok=True)

    def segments(self, folder: Path, *, stay_here: bool) -> tuple["Store", Path]:
        """Return where segments of an output are kept until it is joined; `stay_here`: one machine
        makes them all, and has room for them."""
        return self, atomic.segments_folder(folder)

    def in_use(self, folder: Path) -> AbstractContextManager[Path]:
        """Mark a folder of what is not finished as one that a process works with."""
        return atomic.in_use(folder)

    def remove_segments(self, folder: Path, *, stayed_here: bool) -> None:
        """Remove the segments that an output was joined of, of all machines unless they were one's
        alone and stayed there, or another machine has removed them."""
        for each in (atomic.segments_folder(folder), atomic.folder_of_segments_here(folder)):
            shutil.rmtree(each, ignore_errors=True)

    def read_beside(self, folder: Path, name: str) -> bytes | None:
        """Return a file that no manifest names, as it is in the store now; None if it has none."""
        path = folder / name
        return path.read_bytes() if path.exists() else None

    def write_beside(self, path: Path, content: bytes) -> None:
        """Write a file that no manifest names, whole or not at all."""
        with atomic.new_file(path) as unfinished:
            unfinished.write_bytes(content)

    # Outputs are removed.

    def unfinished(self, folder: Path, *, seconds: float) -> dict[Path, int]:
        """Return what writers that are gone have left of a dataset, and its bytes: nothing has
        changed in it for `seconds`."""
        return atomic.unfinished_here(folder, seconds=seconds)

    def freed_bytes(self, folders: Iterable[Path], unfinished: dict[Path, int]) -> dict[Path, int]:
        """Return the bytes that are free in the store when outputs, and then what is not finished,
        have been removed one after another."""
        return listed_files.freed_bytes([*folders, *unfinished])

    def drop(self, output: "StoredOutput", names: Collection[str]) -> None:
        """Remove files of an output for good, which stays whole without them."""
        drop_here(output.folder, output.manifest, names)

    def remove_all(self, folders: Iterable[Path], *, seconds: float) -> None:
        """Remove outputs, what leads to them, and what is not finished; what another machine may
        work with that has changed something within `seconds` stays."""
        for folder in folders:
            atomic.remove_output(folder, seconds=seconds)


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """A finished output in a store, with a manifest that can be believed."""

    store: Store
    folder: Path
    """The folder that its files have on this disk, once they are asked for; it names the output."""
    manifest: Manifest

    def file(self, name: str) -> Path:
        """Return one of its files, which is on this disk now.

        Where something is made from it, `integrity.Reading` compares it with the manifest.

        Raises: MissingOutputError, CorruptOutputError where it cannot be had from a store at a URL.
        """
        path = self.store.file(self, name)
        try:
            given(self, name)
        except ReadAgainError:  # of a damaged copy, which is gone
            path = self.store.file(self, name)
            given(self, name)
        return path

    def fetch(self, names: Iterable[str] | None = None) -> None:
        """Bring files, by default all, to this disk, several at once. Raises: as `file`."""
        names = self.manifest.files if names is None else names
        self.store.bring([(self, name) for name in names])

    def open(self, name: str) -> BinaryIO:
        """Return one of its files, open for a reader of little of it, such as a header, or a footer
        and a row group. Raises: as `file`."""
        return self.store.open_lazily(self, name)

    def numbers(
        self,
        name: str,
        dtype: npt.DTypeLike,
        *,
        first_byte: int = 0,
        shape: tuple[int, ...] | None = None,
    ) -> npt.NDArray[Any]:
        """Return the numbers of one of its files from a byte on, memory-mapped; of a large one that
        is at a URL `LazyNumbers`, which have no more of an array than is said there. Raises: as
        `file`."""
        from tokflow.store.tables import map_numbers  # late: raw files of this disk need no pyarrow

        far = self.store.far_numbers(self, name, np.dtype(dtype), first_byte, shape)
        if far is not None:
            return far
        num = -1 if shape is None else int(np.prod(shape))
        values = map_numbers(self.file(name), dtype, first_byte=first_byte, num=num)
        return values if shape is None else values.reshape(shape)

    def link(self, name: str, new: Path) -> None:
        """Let `new`, a file of an output that is being made, be one of these files, too, without a
        copy where that is possible."""
        given(self, name)  # before a link changes its ctime
        self.store.link(self, name, new)

    def run(self) -> dict[str, Any]:
        """Return what is known of the run that made it; empty where nothing is."""
        return self.store.run(self.folder)

    @property
    def shown(self) -> str:
        """The name of its folder in messages."""
        return self.store.shown(self.folder)

    @property
    def name(self) -> str:
        """Its name in messages: `tokens of a.jsonl`, `export bin` or `tokenizer`."""
        made_by, partition = self.manifest.recipe.stage, self.manifest.partition
        if partition:
            return f"{made_by} of {partition}"
        return made_by if self.export_name == made_by else f"{made_by} {self.export_name}"

    @property
    def export_name(self) -> str:
        """The name of an export: of the folder that has it and its older builds, or of its own
        where it lies outside of a store."""
        is_stored = self.folder.name == self.manifest.recipe.fingerprint[:16]
        return (self.folder.parent if is_stored else self.folder).name


class InStore:
    """Base of readers of an output, which they have as `stored`."""

    __slots__ = ()
    stored: StoredOutput

    @property
    def store(self) -> Store:
        """The store that it is in."""
        return self.stored.store

    @property
    def folder(self) -> Path:
        """The folder that its files have on this disk, once they are asked for; it names it."""
        return self.stored.folder

    @property
    def manifest(self) -> Manifest:
        """Its content, and what it was made from."""
        return self.stored.manifest

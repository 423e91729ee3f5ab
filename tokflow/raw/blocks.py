"""The bytes of one version of a remote file that are on this disk.

    <folder>/.blocks              a line for each block: run, start, stop, sha256[:16]
    <folder>/<start of a run>     the bytes of the file from there on, one block after another

A block is on disk before its line is, and hashed when it is first used, so a killed process leaves
nothing wrong. Several processes may add blocks at once: whatever two write to one place is equal.
"""

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from tokflow.errors import RawFileError
from tokflow.raw.remote import Access, Body, TransientError, Validator

BLOCK_BYTES = 4 * 2**20
SYNC_BYTES = 16 * BLOCK_BYTES
"""The most that a crash of the machine can cost; a download that stops otherwise loses no block."""

_INDEX_NAME = ".blocks"
_LINE = re.compile(r"(\d+) (\d+) (\d+) ([0-9a-f]{16})")

_log = logging.getLogger(__name__)


class Block(NamedTuple):
    """A range of bytes that is on this disk."""

    run: int
    """Where the file begins that has it."""
    start: int
    stop: int
    """The byte after the last."""
    digest: str
    """The first 16 digits of its sha256."""


class Blocks:
    """The blocks of one version of a file, in a folder that need not be there."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(os.fspath(folder))
        self._blocks: dict[tuple[int, int], Block] = {}
        self._whole = set[Block]()
        """Those that were hashed."""
        with suppress(FileNotFoundError):
            for line in (self._folder / _INDEX_NAME).read_text().splitlines():
                if found := _LINE.fullmatch(line):
                    run, start, stop = map(int, found.groups()[:3])
                    self.hold(Block(run, start, stop, found[4]))
            self._whole.clear()

    def find(self, position: int) -> Block | None:
        """Return a block that holds the byte at `position`, undamaged."""
        for block in list(self._blocks.values()):
            if block.start <= position < block.stop and self._is_whole(block):
                return block
        return None

    def edge(self, position: int) -> int | None:
        """Return where the block ends that holds a byte, or else where the next one begins."""
        if (block := self.find(position)) is not None:
            return block.stop
        starts = (of.start for of in list(self._blocks.values()) if of.start > position)
        return min(starts, default=None)

    def read(self, start: int, stop: int) -> bytes | None:
        """Return the bytes between two positions as far as one block has them, or None."""
        block = self.find(start)
        with suppress(FileNotFoundError):
            return (block and self._at(block, start, stop)) or None
        return None

    def keep(self, start: int, data: bytes) -> None:
        """Add a block. Raises: RawFileError if the disk does not take it."""
        before = (of.run for of in list(self._blocks.values()) if of.stop == start)
        run = next(before, start)
        self.write(run, start, data, room=len(data))
        self.note(Block(run, start, start + len(data), hashlib.sha256(data).hexdigest()[:16]))

    def write(self, run: int, start: int, data: bytes, *, room: int) -> None:
        """Write bytes to where they are in the file of a run.

        Raises: RawFileError if the disk does not take them, which names the `room` for all.
        """
        path = self.path_of(run)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0), path.open("rb+", buffering=0) as file:
                file.seek(start - run)
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
        except OSError as error:
            raise _no_room(path, error, room) from error

    def note(self, block: Block) -> None:
        """Write down that a block is there, once the disk has it."""
        path = self.path_of(block.run)
        line = " ".join(map(str, block))
        try:
            for each, data in ((path, b""), (self._folder / _INDEX_NAME, f"\n{line}\n".encode())):
                with each.open("ab", buffering=0) as file:
                    file.write(data)  # one call; the first line end closes a line that was cut off
                    os.fsync(file.fileno())
        except OSError as error:
            raise _no_room(path, error, block.stop - block.start) from error
        self.hold(block)

    def hold(self, block: Block) -> None:
        """Find a block that was written from now on, in this process alone."""
        known = self._blocks.get(block[:2])
        if known is None or known.stop <= block.stop:
            self._blocks[block[:2]] = block
            self._whole.add(block)

    def clear(self) -> None:
        """Forget all blocks and remove them."""
        (self._folder / _INDEX_NAME).unlink(missing_ok=True)  # first: it never speaks of others
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):
            self._folder.parent.rmdir()
        self._blocks.clear()

    def path_of(self, run: int) -> Path:
        """Return the file of the blocks that follow one another from there on."""
        return self._folder / str(run)

    def pieces(self, block: Block, start: int) -> Iterator[bytes]:
        """Yield the bytes of a block from a position on."""
        while data := self._at(block, start, min(start + BLOCK_BYTES, block.stop)):
            yield data
            start += len(data)

    def _at(self, block: Block, start: int, stop: int) -> bytes:
        with self.path_of(block.run).open("rb", buffering=0) as file:
            file.seek(start - block.run)
            return file.read(min(stop, block.stop) - start)

    def _is_whole(self, block: Block) -> bool:
        path, digest = self.path_of(block.run), hashlib.sha256()
        if block in self._whole and path.exists():
            return True
        with suppress(FileNotFoundError):  # it was garbage to another dataset of the same name
            for data in self.pieces(block, block.start):
                digest.update(data)
            if digest.hexdigest()[:16] == block.digest:
                self._whole.add(block)
                return True
            _log.warning("%s: damaged, so these bytes are fetched again", path)
        self._blocks.pop(block[:2], None)
        return False


class Download:
    """The beginning of one version of a file, which is one block, and that a later download goes on
    from: what blocks there are of a version that is known well enough, else from 0."""

    def __init__(self, blocks: Blocks, version: Validator) -> None:
        self.version = version
        self.num_bytes = 0
        self.total: int | None = None
        """Size of the whole file; None while it is not known."""
        self._blocks = blocks
        self._digest = hashlib.sha256()
        self._num_synced = 0
        if not version.is_strong:
            blocks.clear()
        while (block := blocks.find(self.num_bytes)) is not None:
            self.total = version.num_bytes
            for data in blocks.pieces(block, self.num_bytes):
                self._append(data, is_there=block.run == 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        """Keep what arrived, whatever happened."""
        with suppress(*([RawFileError] if error is not None else [])):  # the first tells more
            self.sync()

    @property
    def sha256(self) -> str:
        """Of the bytes so far."""
        return self._digest.hexdigest()

    def receive(
        self, access: Access, check: Callable[[Body], None] = lambda _: None
    ) -> Generator[None]:
        """Append what is lacking as one answer has it, and yield after each piece.

        Raises: TransientError where it breaks off; what `check` raises of it; RawFileError if the
        disk does not take them.
        """
        if self.total is None or self.num_bytes < self.total:
            with access.open_at(self.num_bytes) as body:
                if body.offset != self.num_bytes:
                    self.restart()
                self.total = body.num_bytes
                while data := body.read(BLOCK_BYTES):
                    check(body)
                    self._append(data)
                    yield
        if self.total is not None and self.num_bytes != self.total:
            found = f"{self.num_bytes:,} of {self.total:,} bytes"
            if self.num_bytes > self.total:
                self.restart()
            raise TransientError(found)

    def restart(self) -> None:
        """Throw away what has arrived."""
        self._blocks.clear()
        self._digest, self.num_bytes, self.total, self._num_synced = hashlib.sha256(), 0, None, 0

    def move_to(self, path: Path) -> None:
        """Give the complete file its place, and let go of the blocks."""
        self._blocks.write(0, 0, b"", room=0)  # for one that is empty
        os.truncate(self._blocks.path_of(0), self.num_bytes)
        self._blocks.path_of(0).rename(path)
        self._blocks.clear()

    def _append(self, data: bytes, *, is_there: bool = False) -> None:
        if not is_there:
            self._blocks.write(0, self.num_bytes, data, room=self.total or self.num_bytes)
        self._digest.update(data)
        self.num_bytes += len(data)
        self._blocks.hold(self._block)
        if self.num_bytes >= self._num_synced + SYNC_BYTES:
            self.sync()

    def sync(self) -> None:
        """Write down what has arrived."""
        if self.num_bytes > self._num_synced:
            self._blocks.note(self._block)
            self._num_synced = self.num_bytes

    @property
    def _block(self) -> Block:
        return Block(0, 0, self.num_bytes, self.sha256[:16])


def _no_room(path: Path, error: OSError, num_bytes: int) -> RawFileError:
    return RawFileError(
        where=path,
        expected=f"room for {num_bytes:,} bytes",
        found=error.strerror or str(error),
        remedy="free disk space and run again; the bytes that arrived are kept",
    )

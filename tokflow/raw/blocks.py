"""The bytes of one version of a remote file that are on this disk.

    <folder>/content    the file; where no block of it is written down its bytes mean nothing
    <folder>/.blocks    a line for each block of 1 MiB: its number, how much of it is there, xxh3

A block is compared with its line whenever it is used, so a killed process leaves nothing wrong, nor
does a machine that loses what it had not written yet. Several processes may add blocks at once:
whatever two write to one place is equal.
"""

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Self

from xxhash import xxh3_64, xxh3_64_hexdigest

from tokflow.errors import RawFileError
from tokflow.raw.remote import Access, TransientError, Validator
from tokflow.store.positioned import write_range

BLOCK_BYTES = 2**20

_LINE = re.compile(r"(\d+) (\d+) ([0-9a-f]{16})")

_log = logging.getLogger(__name__)


class Blocks:
    """The blocks of one version of a file, in a folder that need not be there."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(os.fspath(folder))
        self.path = self._folder / "content"
        self._index = self._folder / ".blocks"
        self._known: dict[int, tuple[int, str]] = {}
        with suppress(FileNotFoundError):
            for found in map(_LINE.fullmatch, self._index.read_text().splitlines()):
                if found is not None:
                    self._known[int(found[1])] = int(found[2]), found[3]

    def find(self, number: int) -> bytes:
        """Return what is there of a block, undamaged."""
        num_bytes, digest = self._known.get(number, (0, ""))
        data = self.read(number * BLOCK_BYTES, number * BLOCK_BYTES + num_bytes)
        if num_bytes == 0 or xxh3_64_hexdigest(data) == digest:
            return data
        if self.path.exists():  # or it was garbage to another dataset of the same name
            _log.warning("%s: damaged, so these bytes are fetched again", self.path)
        self._known.pop(number, None)
        return b""

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes between two positions as they lie there."""
        with suppress(FileNotFoundError), self.path.open("rb", buffering=0) as file:
            file.seek(start)
            return file.read(stop - start)
        return b""

    def fetched(
        self, fetch: Callable[[int, int], bytes], start: int, stop: int, num_bytes: int
    ) -> bytes:
        """Return the bytes between two positions of a file of `num_bytes`; of blocks that are not
        there what `fetch` returns, which is kept.

        Raises: RawFileError if the disk does not take them.
        """
        numbers = range(start // BLOCK_BYTES, (stop - 1) // BLOCK_BYTES + 1)
        found = {number: self.find(number) for number in numbers}
        wanted = {number: min(BLOCK_BYTES, num_bytes - number * BLOCK_BYTES) for number in numbers}
        lacking = [number for number in numbers if len(found[number]) < wanted[number]]
        if lacking:
            first = lacking[0] * BLOCK_BYTES
            data = fetch(first, min((lacking[-1] + 1) * BLOCK_BYTES, num_bytes))
            for number in range(lacking[0], lacking[-1] + 1):
                found[number] = data[number * BLOCK_BYTES - first :][:BLOCK_BYTES]
                self.keep(number, found[number])
        first = numbers[0] * BLOCK_BYTES
        return b"".join(found.values())[start - first : stop - first]

    def keep(self, number: int, data: bytes) -> None:
        """Add a block. Raises: RawFileError if the disk does not take it."""
        self.write(number * BLOCK_BYTES, data, room=len(data))
        self.note(number, len(data), xxh3_64_hexdigest(data))

    def write(self, start: int, data: bytes, *, room: int) -> None:
        """Write bytes to where they are in the file.

        Raises: RawFileError if the disk does not take them, which names the `room` for all.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT, mode=0o666)
            with os.fdopen(file, "wb", buffering=0):
                write_range(file, data, start)
        except OSError as error:
            raise _no_room(self.path, error, room) from error

    def note(self, number: int, num_bytes: int, digest: str) -> None:
        """Write down that so much of a block is there, from its beginning.

        Raises: RawFileError if the disk does not take the line.
        """
        self._known[number] = num_bytes, digest
        line = f"\n{number} {num_bytes} {digest}\n".encode()
        try:
            with self._index.open("ab", buffering=0) as file:
                file.write(line)  # one call; its first line end closes a line that was cut off
        except OSError as error:
            raise _no_room(self._index, error, len(line)) from error

    def clear(self) -> None:
        """Forget all blocks and remove them."""
        self._index.unlink(missing_ok=True)  # first: it never speaks of others
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):
            self._folder.parent.rmdir()
        self._known = {}


class Download:
    """The beginning of one version of a file, that a later download goes on from: what blocks there
    are of a version that is known well enough, else from 0."""

    def __init__(self, blocks: Blocks, version: Validator) -> None:
        self.version = version
        self.num_bytes = 0
        self.total: int | None = None
        """Size of the whole file; None while it is not known."""
        self._blocks = blocks
        self._digest, self._of_block = hashlib.sha256(), xxh3_64()
        if not version.is_strong:
            blocks.clear()
        while data := blocks.find(self.num_bytes // BLOCK_BYTES):
            self.total = version.num_bytes
            self._count(data)
            if self.num_bytes % BLOCK_BYTES:
                break

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        """Keep what arrived, whatever happened."""
        with suppress(*([RawFileError] if error is not None else [])):  # the first tells more
            if self.num_bytes % BLOCK_BYTES:
                self._note()

    @property
    def sha256(self) -> str:
        """Of the bytes so far."""
        return self._digest.hexdigest()

    def receive(self, access: Access) -> Generator[None]:
        """Append what is lacking as one answer has it, and yield after each piece.

        Raises: TransientError where it breaks off; RawFileError if the disk does not take them.
        """
        if self.total is None or self.num_bytes < self.total:
            with access.open_at(self.num_bytes) as body:
                if body.offset != self.num_bytes:
                    self.restart()
                self.total = body.num_bytes
                while data := body.read(BLOCK_BYTES - self.num_bytes % BLOCK_BYTES):
                    self._blocks.write(self.num_bytes, data, room=self.total or self.num_bytes)
                    self._count(data)
                    if self.num_bytes % BLOCK_BYTES == 0:
                        self._note()
                    yield
        if self.total is not None and self.num_bytes != self.total:
            found = f"{self.num_bytes:,} of {self.total:,} bytes"
            if self.num_bytes > self.total:
                self.restart()
            raise TransientError(found)

    def restart(self) -> None:
        """Throw away what has arrived."""
        self._blocks.clear()
        self._digest, self.num_bytes, self.total = hashlib.sha256(), 0, None

    def move_to(self, path: Path) -> None:
        """Give the complete file its place, and let go of the blocks."""
        self._blocks.write(0, b"", room=0)  # for one that is empty
        os.truncate(self._blocks.path, self.num_bytes)
        self._blocks.path.rename(path)
        self._blocks.clear()

    def _count(self, data: bytes) -> None:
        if self.num_bytes % BLOCK_BYTES == 0:
            self._of_block = xxh3_64()
        self._digest.update(data)
        self._of_block.update(data)
        self.num_bytes += len(data)

    def _note(self) -> None:
        """Note the block that the last bytes are in."""
        number, last = divmod(self.num_bytes - 1, BLOCK_BYTES)
        self._blocks.note(number, last + 1, self._of_block.hexdigest())


def _no_room(path: Path, error: OSError, num_bytes: int) -> RawFileError:
    return RawFileError(
        where=path,
        expected=f"room for {num_bytes:,} bytes",
        found=error.strerror or str(error),
        remedy="free disk space and run again; the bytes that arrived are kept",
    )

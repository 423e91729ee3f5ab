"""The ranges of a file elsewhere that are in the store, each in a file of its own.

    <folder>/<start>-<stop>-<sha256[:16]>    the bytes from `start` up to `stop`

A block is written whole or not at all, never changed, and hashed when it is first used, so a
killed process leaves nothing wrong, and several processes may add blocks at once; blocks that
overlap hold the same bytes.
"""

import hashlib
import logging
import os
import re
from pathlib import Path
from typing import NamedTuple

from tokflow.errors import RawFileError
from tokflow.store.atomic import new_file

_NAME = re.compile(r"([0-9]{15})-([0-9]{15})-([0-9a-f]{16})")

_log = logging.getLogger(__name__)


class Block(NamedTuple):
    """A range of bytes that is on this disk."""

    start: int
    stop: int
    """The byte after the last."""
    path: Path

    @property
    def digest(self) -> str:
        """The first 16 digits of its sha256, as its name says."""
        return self.path.name[-16:]


class Blocks:
    """The blocks of one version of a file, in a folder that need not be there."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(os.fspath(folder))
        self._blocks = _list_blocks(self._folder)
        self._last: Block | None = None
        self._whole = set[Path]()
        """Those that were hashed."""

    def find(self, position: int) -> Block | None:
        """Return a block that holds the byte at `position`, undamaged; one that is damaged is
        removed."""
        near = [] if self._last is None else [self._last]
        for block in near + self._blocks:
            if block.start <= position < block.stop and self._is_whole(block):
                self._last = block
                return block
        return None

    def next_start(self, position: int) -> int | None:
        """Return where the first block begins that begins behind `position`."""
        return min((of.start for of in self._blocks if of.start > position), default=None)

    def read(self, block: Block, start: int, stop: int) -> bytes:
        """Return the bytes between two positions, as far as the block has them."""
        with block.path.open("rb", buffering=0) as file:
            file.seek(start - block.start)
            return file.read(min(stop, block.stop) - start)

    def keep(self, start: int, data: bytes) -> None:
        """Add a block. Raises: RawFileError if the disk does not take it."""
        stop = start + len(data)
        name = f"{start:015d}-{stop:015d}-{_digest(data)}"
        try:
            with new_file(self._folder / name) as path:
                path.write_bytes(data)
        except OSError as error:
            raise RawFileError(
                where=self._folder,
                expected=f"room for {len(data):,} bytes",
                found=error.strerror or str(error),
                remedy="free disk space and run again; the bytes that arrived are kept",
            ) from error
        self._last = Block(start, stop, self._folder / name)
        self._blocks.append(self._last)
        self._whole.add(self._last.path)

    def _is_whole(self, block: Block) -> bool:
        if block.path in self._whole and block.path.exists():
            return True
        try:
            data = block.path.read_bytes()
        except FileNotFoundError:  # it was garbage to another dataset of the same name
            self._blocks.remove(block)
            return False
        if len(data) != block.stop - block.start or _digest(data) != block.digest:
            _log.warning("%s: damaged, so these bytes are fetched again", block.path)
            block.path.unlink()
            self._blocks.remove(block)
            return False
        self._whole.add(block.path)
        return True


def _list_blocks(folder: Path) -> list[Block]:
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    names = ((path, _NAME.fullmatch(path.name)) for path in paths)
    return [Block(int(name[1]), int(name[2]), path) for path, name in names if name]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]

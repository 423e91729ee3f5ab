"""A download under way: the bytes that have arrived, on disk, and their sha256."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, Self

from tokflow.errors import RawFileError
from tokflow.raw.remote import Validator
from tokflow.store.atomic import new_file

BLOCK_BYTES = 4 * 2**20
SYNC_BYTES = 16 * BLOCK_BYTES
"""The most that a crash of the machine can cost; a download that stops otherwise loses no block."""


class PartialDownload:
    """The beginning of one version of a file, which a later download may go on from.

    Beside it is a JSON with the version (`validator`), how many bytes were surely on disk, and
    the size of the whole. Only those bytes are taken up, hashed again, and only if the version is
    the same and known well enough; else the download begins at 0.
    """

    def __init__(self, path: Path, validator: Validator, file: BinaryIO) -> None:
        self.validator = validator
        self.num_bytes = 0
        self.total: int | None = None
        """Size of the whole file; None while it is not known."""
        self._path = path
        self._file = file
        self._sidecar = path.with_name(f"{path.name}.json")
        self._digest = hashlib.sha256()
        self._num_synced = 0
        self._take_up()

    @classmethod
    @contextmanager
    def at(cls, path: Path, validator: Validator) -> Iterator[Self]:
        """Open the download at `path`, new or begun; what arrived is kept, whatever happens."""
        with path.open("ab+", buffering=0) as file:
            partial = cls(path, validator, file)
            try:
                yield partial
            except BaseException:
                with suppress(RawFileError):  # the first error tells more
                    partial._sync()
                raise
            partial._sync()

    @property
    def is_complete(self) -> bool:
        """All bytes are there, so there is nothing left to ask for."""
        return self.total is not None and self.num_bytes == self.total

    @property
    def sha256(self) -> str:
        """Of the bytes so far."""
        return self._digest.hexdigest()

    def append(self, block: bytes) -> None:
        """Write `block` at the end. Raises: RawFileError if the disk does not take it."""
        try:
            view = memoryview(block)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise self._no_room(error) from error
        self._digest.update(block)
        self.num_bytes += len(block)
        if self.num_bytes >= self._num_synced + SYNC_BYTES:
            self._sync()

    def restart(self) -> None:
        """Throw away what has arrived."""
        self._sidecar.unlink(missing_ok=True)  # first: it must never speak of other bytes
        self._file.truncate(0)
        self._digest, self.num_bytes, self.total, self._num_synced = hashlib.sha256(), 0, None, 0

    def move_to(self, path: Path) -> None:
        """Give the complete file its place."""
        self._path.rename(path)
        self._sidecar.unlink(missing_ok=True)

    def _take_up(self) -> None:
        num_bytes, total = self._read_sidecar()
        if not 0 < num_bytes <= self._path.stat().st_size or not self.validator.is_strong:
            self.restart()
            return
        self._file.truncate(num_bytes)
        self._file.seek(0)
        while block := self._file.read(BLOCK_BYTES):
            self._digest.update(block)
        self.num_bytes, self.total, self._num_synced = num_bytes, total, num_bytes

    def _read_sidecar(self) -> tuple[int, int | None]:
        try:
            fields = json.loads(self._sidecar.read_text())
            is_same = Validator(**fields["validator"]) == self.validator
            return (int(fields["num_bytes"]), fields["total"]) if is_same else (0, None)
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return 0, None  # the download begins again

    def _sync(self) -> None:
        fields = {
            "validator": asdict(self.validator),
            "num_bytes": self.num_bytes,
            "total": self.total,
        }
        try:
            os.fsync(self._file.fileno())
            with new_file(self._sidecar) as temporary:
                temporary.write_text(json.dumps(fields) + "\n")
        except OSError as error:
            raise self._no_room(error) from error
        self._num_synced = self.num_bytes

    def _no_room(self, error: OSError) -> RawFileError:
        return RawFileError(
            where=self._path,
            expected=f"room for {self.total or self.num_bytes:,} bytes",
            found=error.strerror or str(error),
            remedy="free disk space and run again; the bytes that arrived are kept",
        )

"""All tokens of a dataset in one file, which is written and hashed while the last are being made.

The export that consists of them, nanoGPT's .bin without a split, takes the file over.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np

from tokflow.errors import TokflowError
from tokflow.store.atomic import begun_beside
from tokflow.store.integrity import Reading
from tokflow.store.listed_files import Stamp
from tokflow.store.manifest import FileEntry
from tokflow.store.store import StoredOutput
from tokflow.store.streams import HashedWriter
from tokflow.tokens import TokenSource, mapped
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.shard_files import TOKENS_NAME, segment_name

MOST_PARTITIONS = 64
"""Partitions whose tokens are copied ahead: of many each is small, and takes its time otherwise."""

BYTES_AT_ONCE = 8_000_000
"""Bytes of tokens that are written at one go."""

begun: "list[TokensAhead]" = []
"""The files of builds under way in this process."""


class TokensAhead:
    """The tokens of partitions in one file, in the order of their keys; the block ends with it.

    Shards and segments of them are added as they are made, in any order; a thread copies each when
    those before it have been added. After an error nothing more is copied.
    """

    def __init__(self, folder: Path, keys: Sequence[str]) -> None:
        """`folder`: that of the dataset, on this disk."""
        self._path = begun_beside(folder / TOKENS_NAME)
        self._keys = list(keys)
        self._made: dict[tuple[str, int | None], StoredOutput] = {}
        """Segments by key and ordinal, shards by key and None."""
        self._num_segments = 0
        """Segments of the first key that were copied."""
        self._stamps: list[Stamp] = []
        """Of what was copied."""
        self._copying: list[Future[None]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokflow-ahead")
        self._writer: HashedWriter | None = None

    def add(self, output: StoredOutput, key: str, number: int | None = None) -> None:
        """Add what was just made of a partition: a segment, by its ordinal, or the whole shard."""
        self._made[key, number] = output
        try:
            while self._keys:
                key, num = self._keys[0], self._num_segments
                if (made := self._made.get((key, None))) is not None:
                    for name in TokenShard(made).names(TOKENS_NAME)[num:]:
                        self._copy(made, name)
                    self._keys, self._num_segments = self._keys[1:], 0
                elif (made := self._made.get((key, num))) is not None:
                    self._copy(made, segment_name(TOKENS_NAME, num))
                    self._num_segments += 1
                else:
                    break
        except (OSError, TokflowError):
            self._keys = []

    def _copy(self, output: StoredOutput, name: str) -> None:
        """Copy a file of tokens in the thread; it is open here, since a segment is removed soon."""
        with Reading():
            path = output.file(name)
        self._stamps.append(_stamp(path))
        tokens = TokenSource((mapped(path, np.dtype(np.uint8)),))
        if self._writer is None:
            self._writer = HashedWriter(self._path)
        self._copying.append(self._thread.submit(_write, tokens, self._writer))

    def take(self, files: Sequence[Path], new: Path) -> FileEntry | None:
        """Let `new`, of the same dataset, be the file, and return its size and sha256; None where
        it is not the copy of these files as they are now."""
        if self._writer is None or self._stamps != [_stamp(path) for path in files]:
            return None
        try:
            with self._writer:
                for copying in self._copying:
                    copying.result()
            self._path.replace(new)
        except OSError:  # such as a full disk, which is reported where it is written again
            return None
        return self._writer.entry()

    def __enter__(self) -> Self:
        begun.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the file, unless it was taken."""
        begun.remove(self)
        self._thread.shutdown(cancel_futures=True)
        if self._writer is not None and not self._writer.closed:
            with suppress(OSError), self._writer:  # of a file that nobody wants
                pass
        self._path.unlink(missing_ok=True)


def _stamp(path: Path) -> Stamp:
    """Return the stamp of a file but for its ctime, which a link to it changes."""
    return replace(Stamp.of(path.stat()), ctime_ns=0)


def _write(tokens: TokenSource, writer: HashedWriter) -> None:
    for start in range(0, len(tokens), BYTES_AT_ONCE):
        writer.write(tokens.read(start, start + BYTES_AT_ONCE))
        tokens.release()

"""Partitions of raw files: one for each file, or for groups of small ones."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokflow.errors import ConfigError
from tokflow.raw.config import GroupSize
from tokflow.raw.files import RawFile, check_unchanged
from tokflow.raw.listing import RawSource


def group_key(first: str) -> str:
    """Return the partition key of the group that begins with this file.

    Groups sort as their files do, and keep their keys when files are added behind them.
    """
    return f"group/{first}"


@dataclass(frozen=True)  # without slots, since it keeps its digest
class RawPartition:
    """The raw files that one partition is made of, which are on this disk: one, or a group."""

    key: str
    """The partition key."""
    files: tuple[RawFile, ...]
    """In the order of their own keys; one at least."""

    @property
    def is_group(self) -> bool:
        """True if documents have to say which file they are of: several files, or one that others
        may join."""
        return self.key != self.files[0].key

    @cached_property
    def sha256(self) -> str:
        """Its fingerprint: of one file that of its content, of a group that of the list of its
        files' keys and contents."""
        if not self.is_group:
            return self.files[0].sha256
        members = [[file.key, file.sha256] for file in self.files]
        return hashlib.sha256(json.dumps(members, ensure_ascii=False).encode()).hexdigest()

    @property
    def title(self) -> str:
        """The file's path, or the key of a group: how messages call it."""
        return str(self.files[0].path) if len(self.files) == 1 else self.key

    @property
    def num_bytes(self) -> int:
        """Size of the files together when they were hashed."""
        return sum(file.num_bytes for file in self.files)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, in their order."""
        return tuple(file.path for file in self.files)

    @property
    def sizes(self) -> dict[Path, int]:
        """Bytes of each file."""
        return {file.path: file.num_bytes for file in self.files}

    def check_unchanged(self, paths: Iterable[Path] | None = None) -> None:
        """Raise RawFileError if a file, of those at `paths` or all, is not as it was hashed."""
        for path in self.paths if paths is None else paths:
            check_unchanged(self.at(path))

    def at(self, path: Path) -> RawFile:
        """Return the file that has this path."""
        return self._by_path[path]

    @cached_property
    def _by_path(self) -> dict[Path, RawFile]:
        return {file.path: file for file in self.files}


def partitions_of(
    sources: Mapping[str, RawSource],
    size: GroupSize | None,
    *,
    is_alone: Callable[[Path, int], bool],
    kind_of: Callable[[str], object],
) -> dict[str, tuple[RawSource, ...]]:
    """Return the raw files of each partition by its key, in the order of `sources`.

    Without `size` each file is a partition. With it neighbours are, as many as fit; a file with
    which a group would be larger begins the next. So files that are added at the end change the
    last group alone. No group has files of two kinds, nor another beside one that `is_alone`, by
    path and bytes, as a large one is that several workers read.

    Raises: ConfigError where groups are to have so many bytes, and a file is elsewhere.
    """
    if size is None:
        return {key: (source,) for key, source in sources.items()}
    groups = _groups(sources, size, is_alone, kind_of)
    return {group_key(group[0].key): tuple(group) for group in groups}


def _groups(
    sources: Mapping[str, RawSource],
    size: GroupSize,
    is_alone: Callable[[Path, int], bool],
    kind_of: Callable[[str], object],
) -> Iterator[list[RawSource]]:
    group: list[RawSource] = []
    last: object = None
    num_bytes = 0
    for key, source in sources.items():
        of_file = _num_bytes(source, size)
        alone = source.is_local and is_alone(Path(source.url), of_file)
        kind = key if alone else (kind_of(key),)  # a key is no tuple, so no other is of its kind
        is_full = len(group) >= size.num_files or num_bytes + of_file > size.num_bytes
        if group and (kind != last or is_full):
            yield group
            group, num_bytes = [], 0
        group.append(source)
        num_bytes += of_file
        last = kind
    if group:
        yield group


def _num_bytes(source: RawSource, size: GroupSize) -> int:
    if source.is_local:
        with suppress(OSError):  # which is told where the file is read
            return os.stat(source.url).st_size  # noqa: PTH116 (100,000 Paths cost 0.1 s)
        return 0
    if source.num_bytes is not None:
        return source.num_bytes
    if size.is_of_files:
        return 0
    raise ConfigError(
        where="raw.group",
        expected="a number of files, for not all raw files are on this disk, and the size of "
        "others is not known before they are fetched",
        found=f"bytes, and {source.key}, which is elsewhere",
        remedy="write how many files a group has, such as 500",
    )

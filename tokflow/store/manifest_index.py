"""An index of the manifests of one stage, so that a run with nothing to do opens one file, and not
one for each of 10,000 outputs.

    <store>/<dataset>/manifests-<stage>.index     a line for each output, of fields between tabs:
        partition, variant, crc32 of the last field, all of the manifest but its recipe as JSON

A line is of a manifest that was read and believed, and counts as long as that has the same stamp,
and the files of the output their sizes. Nothing is made from it: whoever opens an output reads its
manifest.
"""

import os
import zlib
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from tokflow.store.atomic import new_file
from tokflow.store.listed_files import Stamp
from tokflow.store.manifest import FORMAT_VERSION, MANIFEST_NAME, FileEntry, Manifest, Recipe

LEAST_OUTPUTS = 100
"""Outputs of a stage from which on it has an index; the manifests of fewer are read in no time."""

DEAD_LINES = 1_000
"""Lines beyond those in use, of outputs that were made again, before the index is written anew."""


class _Line(msgspec.Struct, array_like=True, frozen=True):
    """All of a manifest except its recipe, which is known where it is looked for."""

    fingerprint: str
    stamp: Stamp
    """Of the file of the manifest."""
    dataset: str
    partition: str | None
    counts: Mapping[str, int]
    details: Mapping[str, Any]
    files: Mapping[str, FileEntry]


_decode = msgspec.json.Decoder(_Line).decode


class ManifestIndex:
    """The manifests of a stage as they were read last, in one file that several processes may use
    at once.

    The last line of an output counts. A line that was cut off or damaged, and a file that is
    missing or cannot be written, cost that manifests are read.
    """

    def __init__(self, folder: Path, stage: str, keys: Iterable[str]) -> None:
        """`folder`: that of the dataset; `keys`: those of the outputs that it has now, the lines of
        all others go."""
        known = {key.encode() for key in keys}
        self._path = folder / f"manifests-{stage}.index"
        self._new: list[bytes] = []
        self._num_read = 0
        self._has_gone = False
        self._lines: dict[tuple[bytes, bytes], bytes] = {}
        """What follows key and variant, by these."""
        lines: list[bytes] = []
        with suppress(OSError):
            lines = self._path.read_bytes().split(b"\n")
        for line in filter(None, lines):
            key, variant, kept = [*line.split(b"\t", 2), b"", b""][:3]
            self._num_read += 1
            if key in known:
                self._lines[key, variant] = kept
            else:
                self._has_gone = True

    def find(self, folder: str, key: str, variant: str, recipe: Recipe) -> Manifest | None:
        """Return the manifest in the folder of an output, whose place is `key` and `variant`, where
        it and the files of the output look as when it was read; None where it must be read."""
        checksum, _, fields = self._lines.get(_place(key, variant), b"").partition(b"\t")
        if not checksum or checksum != _checksum(fields):
            return None
        try:
            line = _decode(fields)
        except msgspec.MsgspecError:  # of another version
            return None
        if line.fingerprint != recipe.fingerprint or line.stamp != stamp_of_manifest(folder):
            return None
        try:
            for name, entry in line.files.items():
                if os.stat(f"{folder}/{name}").st_size != entry.num_bytes:  # noqa: PTH116
                    return None
        except OSError:
            return None
        return Manifest(
            recipe=recipe,
            dataset=line.dataset,
            partition=line.partition,
            counts=line.counts,
            details=line.details,
            files=line.files,
        )

    def keep(self, key: str, variant: str, manifest: Manifest, stamp: Stamp | None) -> None:
        """Remember a manifest that was believed; `stamp`: that of its file before it was read."""
        if stamp is None:
            return
        of = manifest
        line = _Line(
            of.recipe.fingerprint, stamp, of.dataset, of.partition, of.counts, of.details, of.files
        )
        with suppress(UnicodeEncodeError):  # of a lone surrogate in the name of a token
            fields = msgspec.json.encode(line)
            place, kept = _place(key, variant), b"\t".join([_checksum(fields), fields])
            if self._lines.get(place) != kept:
                self._lines[place] = kept
                self._new.append(b"\t".join([*place, kept]))

    def write(self) -> None:
        """Add to the file what was remembered since it was read."""
        lines, self._new = self._new, []
        num_dead = self._num_read + len(lines) - len(self._lines)
        is_anew = self._has_gone or num_dead > len(self._lines) + DEAD_LINES
        if not (lines or self._has_gone):
            return
        with suppress(OSError):  # a full or read-only disk is reported by other writes
            if is_anew:
                lines = [b"\t".join([*place, kept]) for place, kept in self._lines.items()]
                with new_file(self._path) as unfinished:
                    unfinished.write_bytes(b"\n".join([*lines, b""]))
                self._num_read, self._has_gone = 0, False
            else:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("ab", buffering=0) as file:
                    # The first line end closes a line that was cut off.
                    file.write(b"\n".join([b"", *lines, b""]))
            self._num_read += len(lines)


class ManifestIndexes:
    """The indexes of the stages of one dataset, each in memory from when it is first asked for
    until it is written."""

    def __init__(self, folder: Path, *, are_used: bool) -> None:
        """`are_used`: False where what is remembered does not count, and nothing is kept."""
        self._folder, self._are_used = folder, are_used
        self._of: dict[str, ManifestIndex] = {}

    def of(self, stage: str, keys: Collection[str]) -> ManifestIndex | None:
        """Return the index of a stage with outputs of these keys; None where it has none."""
        if not self._are_used or len(keys) < LEAST_OUTPUTS:
            return None
        found = self._of.get(stage)
        if found is None:
            found = self._of[stage] = ManifestIndex(self._folder, stage, keys)
        return found

    def write(self) -> None:
        """Write all of them."""
        while self._of:
            self._of.popitem()[1].write()


def stamp_of_manifest(folder: str) -> Stamp | None:
    """Return the stamp of the manifest in the folder of an output; None where there is none."""
    try:
        return Stamp.of(os.stat(f"{folder}/{MANIFEST_NAME}"))  # noqa: PTH116 (of many files)
    except OSError:
        return None


def _place(key: str, variant: str) -> tuple[bytes, bytes]:
    return key.encode(), variant.encode()


def _checksum(fields: bytes) -> bytes:
    return b"%08x" % zlib.crc32(fields, FORMAT_VERSION)

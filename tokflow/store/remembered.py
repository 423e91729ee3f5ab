"""Files of lines in which runs remember what they have read and found, so that it is not worked out
again.

    <store>/<dataset>/checks.jsonl                findings of checks of outputs
    <store>/<dataset>/manifests-<stage>.index     the manifests of one stage
    <store>/<dataset>/hashes.jsonl                checksums of raw files; see `raw.hashes`

Several processes may use one at once: the last line of a thing counts. Nothing is synced: a line
that is lost, damaged or cut off costs that what it says is worked out again, and so does a file
that cannot be read or written.
"""

import json
import logging
import os
import zlib
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from tokflow.store.atomic import new_file
from tokflow.store.listed_files import Stamp
from tokflow.store.manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest, Recipe, plain_json

LEAST_OUTPUTS = 100
"""Outputs of a stage from which on it has an index; the manifests of fewer are read in no time."""

DEAD_LINES = 1_000
"""Lines beyond those in use, of outputs that were made again, before the index is written anew."""

_log = logging.getLogger(__name__)


class LineFile:
    """The lines of a file that several processes may add to at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._num_read = 0

    def read(self) -> list[bytes]:
        """Return the lines that were added since the last time."""
        content = b""
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(self._num_read)
                content = file.read()
        except FileNotFoundError:
            pass
        except OSError as error:
            found = error.strerror or error
            _log.warning("%s: cannot be used (%s), so all is worked out again", self.path, found)
        self._num_read += content.rfind(b"\n") + 1
        return [line for line in content.split(b"\n") if line]

    def add(self, *lines: bytes) -> None:
        """Add lines, if the disk takes them: other writes report that it is full or read-only."""
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                # One call appends them whole; the first line end closes one that was cut off.
                file.write(b"\n".join([b"", *lines, b""]))


class CheckMemory:
    """The findings of one dataset's checks, by check and output.

    A line of JSON for each: check, output (its folder below the dataset's, or a word for several),
    digest of all that the check looked at, findings if there were any.
    """

    def __init__(self, folder: Path) -> None:
        self._lines = LineFile(folder / "checks.jsonl")
        self._known: dict[tuple[str, str], tuple[str, list[str]]] = {}
        for line in self._lines.read():
            with suppress(ValueError, TypeError, RecursionError):
                check, output, digest, *findings = plain_json(line)
                self._known[check, output] = str(digest), [*map(str, findings)]

    def find(self, check: str, output: str, digest: str | None) -> list[str] | None:
        """Return what a check found when it looked at what has this digest, or None."""
        known, findings = self._known.get((check, output), ("", []))
        return findings if known == digest else None

    def has_failed(self, check: str, output: str) -> bool:
        """Return whether a check found anything when it last looked at an output."""
        return bool(self._known.get((check, output), ("", []))[1])

    def keep(self, check: str, output: str, digest: str | None, findings: Sequence[str]) -> None:
        """Remember what a check found in what has this digest, unless that is known; nothing where
        it has none."""
        if digest is not None and self._known.get((check, output)) != (digest, [*findings]):
            self._known[check, output] = digest, [*findings]
            self._lines.add(json.dumps([check, output, digest, *findings]).encode())


class _Line(msgspec.Struct, array_like=True, frozen=True):
    fingerprint: str
    stamp: Stamp
    """Of the file of the manifest."""
    manifest: Manifest
    """All of it except its recipe, which is known where it is looked for."""


_decode = msgspec.json.Decoder(_Line).decode
_NO_RECIPE = Recipe(stage="", version=0, config={}, parents={})


class ManifestIndex:
    """The manifests of a stage as they were read last, so that a run with nothing to do opens one
    file, and not one for each of 10,000 outputs.

    A line for each, of fields between tabs: partition, variant, crc32 of the last field, all of the
    manifest but its recipe. It is of a manifest that was read and believed, and counts as long as
    that has the same stamp, and the files of the output their sizes. Nothing is made from it:
    whoever opens an output reads its manifest.
    """

    def __init__(self, folder: Path, stage: str, keys: Iterable[str]) -> None:
        """`folder`: that of the dataset; `keys`: those of the outputs that it has now, the lines of
        all others go."""
        known = {key.encode() for key in keys}
        self._file = LineFile(folder / f"manifests-{stage}.index")
        self._new: list[bytes] = []
        self._has_gone = False
        self._lines: dict[tuple[bytes, bytes], bytes] = {}
        """What follows key and variant, by these."""
        lines = self._file.read()
        self._num_read = len(lines)
        for line in lines:
            key, variant, kept = [*line.split(b"\t", 2), b"", b""][:3]
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
            if line.fingerprint != recipe.fingerprint or line.stamp != stamp_of_manifest(folder):
                return None
            for name, entry in line.manifest.files.items():
                if os.stat(f"{folder}/{name}").st_size != entry.num_bytes:  # noqa: PTH116
                    return None
        except (msgspec.MsgspecError, OSError):  # of another version, or no file
            return None
        return replace(line.manifest, recipe=recipe)

    def keep(self, key: str, variant: str, manifest: Manifest, stamp: Stamp | None) -> None:
        """Remember a manifest that was believed; `stamp`: that of its file before it was read."""
        if stamp is None:
            return
        rest = replace(manifest, recipe=_NO_RECIPE)
        with suppress(UnicodeEncodeError):  # of a lone surrogate in the name of a token
            fields = msgspec.json.encode(_Line(manifest.recipe.fingerprint, stamp, rest))
            place, kept = _place(key, variant), b"\t".join([_checksum(fields), fields])
            if self._lines.get(place) != kept:
                self._lines[place] = kept
                self._new.append(b"\t".join([*place, kept]))

    def write(self) -> None:
        """Add to the file what was remembered since it was read."""
        lines, self._new = self._new, []
        num_dead = self._num_read + len(lines) - len(self._lines)
        if self._has_gone or (lines and num_dead > len(self._lines) + DEAD_LINES):
            lines = [b"\t".join([*place, kept]) for place, kept in self._lines.items()]
            with suppress(OSError), new_file(self._file.path) as unfinished:  # as of `LineFile.add`
                unfinished.write_bytes(b"\n".join([*lines, b""]))
            self._num_read, self._has_gone = 0, False
        elif lines:
            self._file.add(*lines)
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
        if stage not in self._of:
            self._of[stage] = ManifestIndex(self._folder, stage, keys)
        return self._of[stage]

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

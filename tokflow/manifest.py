"""What an output holds and what it was made from."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokflow.errors import CorruptOutputError, MissingOutputError, TokflowError, four_parts
from tokflow.storage import MANIFEST_NAME

FORMAT_VERSION = 1

RUN_NAME = "run.json"
"""Timings and the engine of the run that made an output: beside the manifest, never part of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One file of an output."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The JSON beside an output.

    Same input, same bytes: nothing in it depends on time, host, paths or worker count.
    """

    stage: str
    dataset: str
    partition: str | None
    """The raw file's key; None for an output of the whole dataset."""
    version: int
    """The version of the stage's code: raised when the same input would give other bytes."""
    fingerprint: str
    parents: Mapping[str, str]
    """Name of a parent to its fingerprint."""
    config: Mapping[str, Any]
    """The fields that decided the content."""
    counts: Mapping[str, int]
    """How many of each thing; the accounting of the stage must close in them."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """dtype, special ids and whatever else a reader needs."""
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    """Path relative to the folder, with `/`, to size and checksum; every file but this one."""
    format_version: int = FORMAT_VERSION


def fingerprint(
    stage: str, *, version: int, config: Mapping[str, Any], parents: Mapping[str, str]
) -> str:
    """Return the sha256 of all that decides a stage's content, as 64 hexadecimal digits.

    Two outputs with the same fingerprint have the same bytes. The order of keys in `config`
    and `parents` does not matter; their values must be plain JSON.
    """
    text = json.dumps(
        [stage, version, config, parents], sort_keys=True, ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def write_manifest(folder: Path, manifest: Manifest, *, run: Mapping[str, Any]) -> None:
    """Write `manifest` into `folder`, and beside it how the run went."""
    (folder / RUN_NAME).write_text(json.dumps(run, indent=1, sort_keys=True) + "\n")
    text = json.dumps(dataclasses.asdict(manifest), indent=1, sort_keys=True, ensure_ascii=False)
    (folder / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")


def is_complete(folder: Path) -> bool:
    """Say whether `folder` holds a finished output."""
    return (folder / MANIFEST_NAME).is_file()


def is_intact(folder: Path) -> bool:
    """Say whether `folder` holds a finished output of which no file is missing or cut short.

    Sizes are compared and no content is read; `broken_files` compares checksums.
    """
    try:
        manifest = read_manifest(folder)
        return all(
            (folder / name).stat().st_size == entry.num_bytes
            for name, entry in manifest.files.items()
        )
    except (TokflowError, OSError):
        return False


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest in `folder`.

    Raises: MissingOutputError where there is none, CorruptOutputError where it does not parse
    or was written by a newer tokflow.
    """
    path = folder / MANIFEST_NAME
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingOutputError(
            four_parts(
                where=folder,
                expected=f"a finished output with a {MANIFEST_NAME}",
                found="none",
                remedy="name the folder of a token shard or an export, or run `tokflow run` first",
            )
        ) from None
    except ValueError as error:
        raise CorruptOutputError(
            four_parts(
                where=path,
                expected="JSON",
                found=str(error),
                remedy="delete the folder and run `tokflow run` again",
            )
        ) from error
    if not isinstance(fields, dict) or fields.get("format_version") != FORMAT_VERSION:
        found = fields.get("format_version") if isinstance(fields, dict) else type(fields).__name__
        raise CorruptOutputError(
            four_parts(
                where=path,
                expected=f"format_version {FORMAT_VERSION}",
                found=repr(found),
                remedy="read it with the tokflow that wrote it, or delete the folder and rebuild",
            )
        )
    try:
        files = {name: FileEntry(**entry) for name, entry in fields.pop("files").items()}
        return Manifest(files=files, **fields)
    except (AttributeError, KeyError, TypeError) as error:
        raise CorruptOutputError(
            four_parts(
                where=path,
                expected="the fields of a manifest",
                found=f"{type(error).__name__}: {error}",
                remedy="delete the folder and run `tokflow run` again",
            )
        ) from error


def read_run(folder: Path) -> dict[str, Any]:
    """Return what is known of the run that made `folder`; empty where that was not kept."""
    try:
        run = json.loads((folder / RUN_NAME).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return dict(run)


def checksum(path: Path) -> FileEntry:
    """Return size and sha256 of a file, reading it once."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileEntry(num_bytes=file.tell(), sha256=digest.hexdigest())


def checksums(
    folder: Path, *, known: Mapping[str, FileEntry] | None = None
) -> dict[str, FileEntry]:
    """Return size and sha256 of every file below `folder` but the manifest and the run's log.

    Those of `known`, by path, are not read again: copies of files with the same checksum.
    """
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in {MANIFEST_NAME, RUN_NAME}
    ]
    known = known or {}
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    # Hashing leaves the interpreter free: two files at once take half the time.
    with ThreadPoolExecutor(max_workers=2) as pool:
        entries = {name: pool.submit(checksum, names[name]) for name in names if name not in known}
        return {name: known[name] if name in known else entries[name].result() for name in names}


def broken_files(folder: Path, manifest: Manifest) -> list[str]:
    """Return one sentence for each file that is not what `manifest` says; empty when all are."""
    problems = (broken_file(folder, name, entry) for name, entry in manifest.files.items())
    return [problem for problem in problems if problem]


def broken_file(folder: Path, name: str, entry: FileEntry) -> str | None:
    """Return how a file of the output in `folder` differs from its entry; None if it does not."""
    path = folder / name
    expected = f"{entry.num_bytes:,} bytes"
    try:
        there = checksum(path)
    except FileNotFoundError:
        found = "no file"
    except OSError as error:
        found = error.strerror or type(error).__name__
    else:
        if there == entry:
            return None
        found = f"{there.num_bytes:,}"
        if there.num_bytes == entry.num_bytes:
            expected, found = f"sha256 {entry.sha256[:16]}…", f"{there.sha256[:16]}…"
    return four_parts(
        where=path,
        expected=expected,
        found=found,
        remedy=f"remove the folder {folder} and run `tokflow run` again",
    )

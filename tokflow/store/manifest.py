"""Manifests: the contents of an output, the recipe that it was made by, and a digest of both."""

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from tokflow.errors import CorruptOutputError, ForeignOutputError, MissingOutputError
from tokflow.store.versions import loaded_versions

FORMAT_VERSION = 2

OWN_FOLDER = "_tokflow"
"""The folder in an output that holds what is tokflow's and not the format's: readers of the other
files, such as pyarrow, skip a name that begins with `_`."""

MANIFEST_NAME = f"{OWN_FOLDER}/manifest.json"
"""A folder is complete exactly when it holds this file, which is written last."""

RUN_NAME = f"{OWN_FOLDER}/run.json"
"""Timings and the engine of the run that made an output: beside the manifest, never part of it."""

VERDICTS_NAME = ".verdicts"
"""The folder of verdicts on engines, in a store and in a dataset."""

_SHA256 = re.compile("[0-9a-f]{64}")
_OUTPUT_NAME = re.compile("[0-9a-f]{16}")
_LEADS_OUT = re.compile(r"(\A|/)\.{0,2}(/|\Z)|[\\\0]")
"""A component that is empty, `.` or `..`, or a character that separates them on another system."""

DROPPED = "dropped"
"""Key of the details of an output of which files were dropped."""

MAX_COUNT = 2**63 - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]


@dataclass(frozen=True, kw_only=True)  # without slots, since it keeps its fingerprint
class Recipe:
    """Everything that decides an output: two outputs of one recipe have the same bytes."""

    stage: str
    version: Count
    """The version of the stage's code: raised when the same input would give other bytes."""
    config: Mapping[str, Any]
    """The fields that decide the content; plain JSON."""
    parents: Mapping[str, str]
    """Name of a parent to its fingerprint; of a copy, `content` to the sha256 of its bytes."""

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the recipe, as 64 hexadecimal digits.

        The order of keys in `config` and `parents` does not matter. A copy, which has no config
        and the one parent `content`, is decided by its bytes: its fingerprint is their sha256.
        """
        if not self.config and self.parents.keys() == {"content"}:
            return self.parents["content"]
        return joined_digest([f"{self._start}, {_as_json(self.parents)}]"])

    @property
    def code_version(self) -> str:
        """16 digits of the sha256 of the code's and the config's share: all but the parents."""
        return joined_digest([f"{self._start}]"])[:16]

    @cached_property
    def _start(self) -> str:
        """The start of the JSON array that is hashed, up to the config."""
        return _as_json([self.stage, self.version, self.config])[:-1]

    def with_parents(self, parents: Mapping[str, str]) -> "Recipe":
        """Return the recipe with other parents: the config's share of the fingerprint, which is
        the same for many files, is worked out once."""
        new = Recipe(stage=self.stage, version=self.version, config=self.config, parents=parents)
        new.__dict__["_start"] = self._start
        return new


_as_json = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False).encode


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One file of an output."""

    num_bytes: Count
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The JSON beside an output.

    Same input, same bytes: nothing in it depends on time, host, paths or worker count.
    """

    recipe: Recipe
    dataset: str
    partition: str | None
    """The raw file's key; None for an output of the whole dataset."""
    counts: Mapping[str, Count]
    """Numbers of each thing; the accounting of the stage must close in them."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """dtype, special ids and whatever else a reader needs."""
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    """Path relative to the folder, with `/`, to size and checksum; every file but this one."""
    format_version: int = FORMAT_VERSION

    @property
    def num_bytes(self) -> int:
        """Size of its files together."""
        return sum(entry.num_bytes for entry in self.files.values())

    @property
    def dropped(self) -> dict[str, FileEntry]:
        """Files that its output has no more, by name: whoever makes it again makes them, too."""
        found = self.details.get(DROPPED)
        return msgspec.convert(found, dict[str, FileEntry]) if found else {}

    def fields(self) -> dict[str, Any]:
        """Return the fields as they stand in the file, without the digest."""
        fields = msgspec.to_builtins(self)
        return {**fields.pop("recipe"), "fingerprint": self.recipe.fingerprint, **fields}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Details:
    """Kinds and ranges of the details that more than one module reads; each stage and format has
    more."""

    dtype: Literal["<u2", "<u4"] = "<u2"
    vocab_size: Count = 0
    sequence_length: Count | dict[str, Count] | None = None
    """One value, or a mapping by part where they differ; so are pad_id and padding_side."""
    eos_id: Count | None = None
    bos_id: Count | None = None
    pad_id: Count | dict[str, Count] | None = None
    padding_side: Literal["left", "right"] | dict[str, Literal["left", "right"]] = "right"
    parts: list[Annotated[str, msgspec.Meta(pattern=r"(?a)\A[\w-]+(\.[\w-]+)?\Z")]] | None = None
    format: str = ""
    tokenizer_fingerprint: str = ""


class _ManifestFields(msgspec.Struct):
    details: _Details


def write_manifest(folder: Path, manifest: Manifest, *, run: Mapping[str, Any]) -> None:
    """Write `manifest` into `folder`, and beside it how the run went and with which libraries."""
    run = {**run, "versions": loaded_versions()}
    os.makedirs(f"{folder}/{OWN_FOLDER}", exist_ok=True)  # noqa: PTH103 (of many: a Path is slow)
    for name, data in ((RUN_NAME, indented(run)), (MANIFEST_NAME, sealed(manifest.fields()))):
        with open(f"{folder}/{name}", "wb") as file:  # noqa: PTH123
            file.write(data)


def keep_manifest(folder: Path, data: bytes) -> None:
    """Write the bytes of a manifest, which are of another output, into `folder`."""
    (folder / OWN_FOLDER).mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST_NAME).write_bytes(data)


def folder_of_manifest(manifest: Path) -> Path:
    """Return the folder of the output that a manifest is of."""
    return manifest.parents[1]


def is_output_name(name: str) -> bool:
    """Return whether a folder of this name is an output, and not a part of a partition key."""
    return _OUTPUT_NAME.fullmatch(name) is not None


def is_inside(name: str) -> bool:
    """Return whether a name of a file leads to nothing outside of its output's folder."""
    return _LEADS_OUT.search(name) is None


def is_complete(folder: Path) -> bool:
    """Return whether `folder` holds a finished output."""
    return (folder / MANIFEST_NAME).is_file()


def holds_output(folder: Path) -> bool:
    """Return whether `folder` is an output, finished or damaged: an empty one is none, whatever
    its name."""
    if is_complete(folder):
        return True
    return is_output_name(folder.name) and folder.is_dir() and any(folder.iterdir())


def read_manifest(folder: Path, likely: Recipe | None = None) -> Manifest:
    """Return the manifest in `folder`, as it was written.

    Every byte of it is covered by its digest, and its fingerprint by its recipe; a folder that
    has an output's name has that of its fingerprint. No name in it leads out of the folder.
    `likely`: a recipe that it may have, and then the fingerprint is not worked out again.

    Raises: MissingOutputError where there is none, but CorruptOutputError if the folder has an
    output's name and is not empty, and for anything that no manifest has; ForeignOutputError where
    a newer tokflow wrote it.
    """
    path = f"{folder}/{MANIFEST_NAME}"
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (of many: a Path takes longer)
            data = file.read()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        if holds_output(folder):
            raise damaged(folder, f"a {MANIFEST_NAME}", "none") from None
        raise MissingOutputError(
            where=folder,
            expected=f"a finished output with a {MANIFEST_NAME}",
            found="none",
            remedy="name the folder of a token shard or an export, or run `tokflow run` first",
        ) from None
    fields = _parsed(path, data)
    if not has_its_digest(data):
        expected = "in its second line the sha256 of the others, as it was written"
        raise damaged(path, expected, "other bytes")
    try:
        msgspec.convert(fields, _ManifestFields)
        manifest = msgspec.convert({**fields, "recipe": fields}, Manifest)
        if manifest.recipe == likely:
            object.__setattr__(manifest, "recipe", likely)
        for expected, found in _field_problems(manifest, fields["fingerprint"], folder.name):
            raise damaged(path, expected, found)
    except (KeyError, TypeError, ValueError, RecursionError, msgspec.ValidationError) as error:
        found = f"{type(error).__name__}: {error}".replace("$.recipe.", "$.")
        raise damaged(path, "the fields of a manifest", found) from error
    return manifest


def _parsed(path: str, data: bytes) -> dict[str, Any]:
    """Return the fields of a manifest. A newer format is refused first: whatever its digest is, it
    is not ours to fix."""
    try:
        fields = plain_json(data)
    except (ValueError, RecursionError) as error:
        raise damaged(path, "JSON", str(error)) from error
    version = fields.get("format_version") if isinstance(fields, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ForeignOutputError(
            where=path,
            expected=f"format_version {FORMAT_VERSION}, which this tokflow reads and writes",
            found=str(version),
            remedy="use the tokflow that wrote it, or name another store; it is left as it is",
        )
    if version != FORMAT_VERSION:
        raise damaged(path, f"format_version {FORMAT_VERSION}", repr(version))
    return dict(fields)


def _field_problems(
    manifest: Manifest, fingerprint: str, folder_name: str
) -> Iterator[tuple[str, str]]:
    """Yield what is expected and found where a field cannot be believed."""
    computed = manifest.recipe.fingerprint
    if fingerprint != computed:
        yield f"the fingerprint of its recipe, {computed[:16]}…", repr(fingerprint)
    if is_output_name(folder_name) and folder_name != computed[:16]:
        yield f"to be in a folder called {computed[:16]}", folder_name
    names = [*manifest.files, *manifest.recipe.parents]
    if manifest.partition is not None:
        names.append(manifest.partition)
    for name in names:
        if not is_inside(name):
            yield "names of files inside the folder, such as a/b.bin", repr(name)
    for parent in manifest.recipe.parents.values():
        if not _SHA256.fullmatch(parent):
            yield "fingerprints of parents, 64 hexadecimal digits each", repr(parent)


def damaged(
    where: Path | str, expected: str, found: str, *, run: str = "tokflow run"
) -> CorruptOutputError:
    """Return the error of an output that is not as it was written; `run`: the command that makes
    it again."""
    return CorruptOutputError(
        where=where,
        expected=expected,
        found=found,
        remedy=f"run `{run}`, which makes it again if it is needed, or `tokflow gc`",
    )


def without_files(manifest: Manifest, names: Collection[str]) -> Manifest:
    """Return the manifest of an output once files of it are gone."""
    of = manifest.fields()["files"]
    gone = {name: of[name] for name in manifest.files if name in names}
    return replace(
        manifest,
        files={name: entry for name, entry in manifest.files.items() if name not in names},
        details={**manifest.details, DROPPED: {**manifest.details.get(DROPPED, {}), **gone}},
    )


def read_run(folder: Path) -> dict[str, Any]:
    """Return what is known of the run that made `folder`; empty where that was not kept."""
    try:
        run = plain_json((folder / RUN_NAME).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return run if isinstance(run, dict) else {}


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
    below = (Path(inner, name) for inner, _, names in os.walk(folder) for name in names)
    names = {path.relative_to(folder).as_posix(): path for path in below}
    found = {name: entry for name, entry in (known or {}).items() if name in names}
    unknown = sorted(names.keys() - found.keys() - {MANIFEST_NAME, RUN_NAME})
    # Hashing leaves the interpreter free: two files at once take half the time.
    with ThreadPoolExecutor(max_workers=2) as pool:
        each = pool.map if len(unknown) > 1 else map
        found.update(zip(unknown, each(checksum, map(names.__getitem__, unknown)), strict=True))
    return dict(sorted(found.items()))


def sealed(fields: Mapping[str, Any]) -> bytes:
    """Return the text of a manifest with these fields, its own digest in the second line.

    The digest is the sha256 of all other lines: `sed 2d _tokflow/manifest.json | sha256sum`.
    """
    first, rest = indented(fields).split(b"\n", 1)
    return b"\n".join([first, _digest_line(first, rest), rest])


def joined_digest(texts: Iterable[str]) -> str:
    """Return the sha256, in hex, of texts on lines of their own, such as fingerprints."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def indented(fields: Mapping[str, Any]) -> bytes:
    """Return the text of fields, as `json` indents it, in a third of the time."""
    text = json.dumps(fields, sort_keys=True, ensure_ascii=False)
    return msgspec.json.format(text.encode(), indent=1) + b"\n"


def has_its_digest(data: bytes) -> bool:
    """Return whether the text is as `sealed` made it."""
    lines = data.split(b"\n", 2)
    return len(lines) == 3 and lines[1] == _digest_line(lines[0], lines[2])


def _digest_line(first: bytes, rest: bytes) -> bytes:
    return b' "digest": "%b",' % hashlib.sha256(first + b"\n" + rest).hexdigest().encode()


def plain_json(data: bytes) -> Any:
    """Return what JSON says. Raises: as `json.loads`, which takes three times as long."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return json.loads(data.decode())  # says what is wrong, and reads lone surrogates

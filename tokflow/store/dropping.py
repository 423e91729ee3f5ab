"""Files of an output that are gone for good, and what of it stays.

Its manifest lists them under `dropped`, with their sizes and checksums: the output is whole without
them, and whoever makes it again must make the same bytes.
"""

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tokflow.errors import CorruptOutputError
from tokflow.store.atomic import begun_beside, naming, sync
from tokflow.store.manifest import (
    DROPPED,
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    read_manifest,
    read_run,
    sealed,
)
from tokflow.store.versions import changed_since


def without_files(manifest: Manifest, names: Collection[str]) -> Manifest:
    """Return the manifest of an output once files of it are gone."""
    of = manifest.fields()["files"]
    gone = {name: of[name] for name in manifest.files if name in names}
    return replace(
        manifest,
        files={name: entry for name, entry in manifest.files.items() if name not in names},
        details={**manifest.details, DROPPED: {**manifest.details.get(DROPPED, {}), **gone}},
    )


def drop_here(folder: Path, manifest: Manifest, names: Collection[str]) -> None:
    """Remove files from an output of this disk, after its manifest says so; `manifest`: the one
    that it was read with.

    A process that is killed meanwhile leaves a whole output; what of it is too much goes when this
    is called again. Whatever another process puts in the place of the output stays as it is.
    """
    now = without_files(manifest, names)
    with suppress(FileNotFoundError):
        # A descriptor stays that of this folder, whatever comes to have its name.
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            there = read_manifest(folder)
            if there == manifest != now:
                _replace_manifest(folder, now, place)
            if there in (manifest, now):
                for name in now.dropped:
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=place)
        finally:
            os.close(place)


def _replace_manifest(folder: Path, manifest: Manifest, place: int) -> None:
    """Put another manifest into a folder, open as `place`, in one step."""
    temporary = begun_beside(folder)  # where a killed process leaves nothing in the output
    try:
        with naming(folder / MANIFEST_NAME, temporary):
            temporary.write_bytes(sealed(manifest.fields()))
            sync(temporary)
            os.replace(temporary, MANIFEST_NAME, dst_dir_fd=place)
            sync((folder / MANIFEST_NAME).parent)
    finally:
        temporary.unlink(missing_ok=True)


def check_made_again(temporary: Path, place: Path, dropped: Mapping[str, FileEntry]) -> None:
    """Make sure that an output which was made again has the files that were `dropped` of it, for
    splits and exports were made from those.

    `place`: the folder of all its versions. Raises: CorruptOutputError.
    """
    if not dropped:
        return
    manifest = read_manifest(temporary)
    found = manifest.files
    if other := [name for name in dropped if found.get(name) != dropped[name]]:
        folder, name = place / manifest.recipe.fingerprint[:16], other[0]
        changes = changed_since([read_run(folder).get("versions", {})])
        since = changes or ["no library has another version: perhaps what a function imports"]
        raise CorruptOutputError(
            where=folder / name,
            expected=f"the tokens that were dropped, {_shown(dropped[name])}",
            found=f"{_shown(found.get(name))}, made again of the same files ({'; '.join(since)})",
            remedy="put back what it was, or make everything anew: set documents.transform_version "
            "if a transform imports it, else remove the dataset's folder in the store",
        )


def _shown(entry: FileEntry | None) -> str:
    return "none" if entry is None else f"{entry.num_bytes:,} bytes, sha256 {entry.sha256[:16]}…"

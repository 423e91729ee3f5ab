"""Files of an output that are gone for good, and what of it stays.

Its manifest lists them under `dropped`, with their sizes and checksums: the output is whole without
them, and whoever makes it again makes the same bytes.
"""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from tokflow.store.atomic import begun_beside, naming, sync
from tokflow.store.manifest import DROPPED, MANIFEST_NAME, Manifest, sealed


def without_files(manifest: Manifest, names: Collection[str]) -> Manifest:
    """Return the manifest of an output once files of it are gone."""
    of = manifest.fields()["files"]
    gone = {name: of[name] for name in manifest.files if name in names}
    return replace(
        manifest,
        files={name: entry for name, entry in manifest.files.items() if name not in names},
        details={**manifest.details, DROPPED: {**manifest.details.get(DROPPED, {}), **gone}},
    )


def drop_here(folder: Path, manifest: Manifest) -> None:
    """Remove from a folder of this disk what its manifest of now says, after it is written.

    A process that is killed meanwhile leaves a whole output; what of it is too much goes when this
    is called again.
    """
    data = sealed(manifest.fields())
    path = folder / MANIFEST_NAME
    if path.read_bytes() != data:
        temporary = begun_beside(folder)  # where a killed process leaves nothing in the output
        try:
            with naming(path, temporary):
                temporary.write_bytes(data)
                sync(temporary)
                temporary.replace(path)
                sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    for name in manifest.dropped:
        (folder / name).unlink(missing_ok=True)

"""Outputs at a URL of which somebody removed objects, or put others of another size.

The manifest of such an output is there, and no plan sees more of it: this lists the objects.
"""

from collections.abc import Iterable
from pathlib import Path

from tokflow.store.manifest import MANIFEST_NAME, read_manifest
from tokflow.store.remote.damage import note_damage
from tokflow.store.remote.keys import data_prefix
from tokflow.store.remote.places import Place


def note_lacking(place: Place, folders: Iterable[Path]) -> int:
    """Return of how many outputs, of those in these folders, files are not at their URL with the
    sizes of their manifests; this disk remembers them as damaged, so a run makes them again.

    It takes a request for each thousand objects of their datasets. The manifests on this disk must
    be those of the URL.
    """
    datasets: dict[str, list[Path]] = {}
    for folder in folders:
        datasets.setdefault(place.key(folder).split("/")[0], []).append(folder)
    lacking: list[Path] = []
    for dataset, outputs in datasets.items():
        sizes = {entry.key: entry.num_bytes for entry in place.objects.listed(dataset)}
        lacking += [folder for folder in outputs if _is_lacking(place, folder, sizes)]
    for folder in lacking:
        note_damage(folder)
    return len(lacking)


def _is_lacking(place: Place, folder: Path, sizes: dict[str, int]) -> bool:
    prefix = data_prefix(place, folder, (folder / MANIFEST_NAME).read_bytes())
    files = read_manifest(folder).files
    return any(sizes.get(prefix + name) != entry.num_bytes for name, entry in files.items())

"""Objects at a URL that belong to no output: of writers that were killed, or lost to another."""

import time
from collections.abc import Iterator
from pathlib import Path

from tokflow.store.atomic import remove
from tokflow.store.manifest import MANIFEST_NAME, folder_of_manifest, is_output_name
from tokflow.store.remote.entry import Entry
from tokflow.store.remote.keys import PACKS, data_prefix, mirror_key, mirror_path
from tokflow.store.remote.packs import packs_of, unread
from tokflow.store.remote.places import Place
from tokflow.store.segments import is_segments_folder


def find_unfinished(place: Place, dataset_folder: Path, *, seconds: float) -> dict[Path, int]:
    """Return what nobody finished at the URL of a dataset, by the paths that stand for it, and its
    bytes.

    That is: files of an output whose manifest is not there, or is that of other bytes; segments;
    uploads in parts that were begun. It is of writers that are gone if nothing has changed in it
    for so many seconds. Packs that old of which nothing is left to read come with it. The manifests
    on this disk must be those of the URL; it takes a request for each thousand objects.
    """
    limit = _ago(seconds)
    manifests = [*dataset_folder.rglob(MANIFEST_NAME)]
    committed = {_files_of(place, path) for path in manifests}
    times = sorted(path.stat().st_mtime_ns for path in manifests)
    packs = {pack.key for pack in unread(packs_of(place, place.key(dataset_folder)), times)}
    found: dict[Path, int] = {}
    newest: dict[Path, int] = {}
    mirrored = f"{mirror_key(place, dataset_folder)}/"
    for entry in place.objects.listed(place.key(dataset_folder)):
        is_mirrored = entry.key.startswith(mirrored)
        there = mirror_path(place, entry.key) if is_mirrored else f"{place.root}/{entry.key}"
        if there is None:
            continue
        path = Path(there)
        group = path if entry.key in packs else _group_of(path, committed)
        if group is not None:
            found[group] = found.get(group, 0) + entry.num_bytes
            newest[group] = max(newest.get(group, 0), entry.modified_ns)
    for upload in place.objects.uploads(place.key(dataset_folder)):
        path = place.root / upload.key
        if upload.begun_ns < limit:
            found[path] = 0
        elif (group := _group_of(path, committed)) is not None:
            newest[group] = upload.begun_ns
    return {path: num for path, num in found.items() if newest.get(path, 0) < limit}


def remove_unfinished(place: Place, path: Path, *, seconds: float) -> None:
    """Remove what `find_unfinished` found, unless somebody has written there since."""
    entries = [*_below(place, path)]
    if all(entry.modified_ns < _ago(seconds) for entry in entries):
        place.objects.remove([entry.key for entry in entries])
        key = place.key(path)
        for upload in place.objects.uploads(place.key(path.parent)):
            is_below = f"{upload.key}/".startswith(f"{key}/")
            if is_below and upload.begun_ns < _ago(seconds):
                place.objects.abort(upload)
        remove(path)


def _below(place: Place, path: Path) -> Iterator[Entry]:
    """Yield the objects of a path, manifests first; a pack, which is written once, is one."""
    for prefix in (mirror_key(place, path), place.key(path)):
        yield from place.objects.listed(prefix)
    if path.parent == place.root / place.key(path).split("/")[0] / PACKS:
        yield Entry(place.key(path), num_bytes=0, modified_ns=0)


def _files_of(place: Place, manifest: Path) -> Path:
    """Return the folder that stands for the files of an output that has a manifest."""
    return place.root / data_prefix(place, folder_of_manifest(manifest), manifest.read_bytes())


def _group_of(path: Path, committed: set[Path]) -> Path | None:
    """Return the folder that is removed as a whole with a file: of segments, or of the files of one
    manifest that is not there; None for what belongs to an output, or is none of tokflow's."""
    for folder in path.parents:
        if is_segments_folder(folder):
            return folder
    for folder in path.parents:
        if folder in committed:
            return None
        if is_output_name(folder.name) and is_output_name(folder.parent.name):
            return folder
    return None


def _ago(seconds: float) -> int:
    return time.time_ns() - int(seconds * 1e9)

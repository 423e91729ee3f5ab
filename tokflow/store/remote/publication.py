"""Outputs put at a URL, whole or not at all, and removed there."""

import shutil
from pathlib import Path

from tokflow.errors import CorruptOutputError
from tokflow.store.copies import copies_in
from tokflow.store.latest import LATEST, named_by
from tokflow.store.manifest import (
    MANIFEST_NAME,
    RUN_NAME,
    VERDICTS_NAME,
    folder_of_manifest,
    keep_manifest,
    read_manifest,
)
from tokflow.store.remote.cache_limit import note_bytes
from tokflow.store.remote.damage import is_known_damaged
from tokflow.store.remote.entry import Piece
from tokflow.store.remote.keys import (
    data_prefix,
    manifest_key,
    mirror_key,
    output_folder,
)
from tokflow.store.remote.places import Place
from tokflow.store.remote.requests import for_each
from tokflow.store.segments import segments_folder


def publish(place: Place, temporary: Path, folder: Path) -> None:
    """Put the finished output in `temporary` at the URL that `folder` stands for.

    When this returns, a whole output is there, and `temporary` has its manifest: if another writer
    was first, and its bytes differ, that is the other's, and the files in `temporary` are gone, to
    be fetched where they are needed.
    """
    data = (temporary / MANIFEST_NAME).read_bytes()
    prefix = data_prefix(place, folder, data)
    manifest = read_manifest(temporary)
    files = manifest.files
    in_segments = _in_segments(place, folder)

    def put(name: str) -> None:
        entry = files.get(name)
        if entry is not None and entry.sha256 in in_segments:
            place.objects.copy(in_segments[entry.sha256], prefix + name, entry.num_bytes)
        else:
            path = temporary / name
            place.objects.put_file(path, prefix + name, _copied(place, path))

    for_each(put, [*files, *([RUN_NAME] if (temporary / RUN_NAME).exists() else [])])
    there = _commit(place, folder, data, temporary)
    if there != data:
        for path in list(temporary.iterdir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        keep_manifest(temporary, there)
    note_bytes(manifest.num_bytes)


def _copied(place: Place, new: Path) -> dict[int, Piece]:
    """Return the objects of a place that have ranges of a new file, by where they begin in it."""
    found = {}
    for each in copies_in(new):
        is_here = each.path.is_relative_to(place.root)
        if is_here and (folder := output_folder(place, each.path)) is not None:
            prefix = data_prefix(place, folder, (folder / MANIFEST_NAME).read_bytes())
            key = prefix + each.path.relative_to(folder).as_posix()
            found[each.start] = Piece(key, each.start_there, each.start_there + each.num_bytes)
    return found


def _in_segments(place: Place, folder: Path) -> dict[str, str]:
    """Return the keys of the files of segments that an output is joined of, by their sha256: the
    server copies them, and they need not be on this disk."""
    keys: dict[str, str] = {}
    for manifest in segments_folder(folder).glob(f"[!.]*/{MANIFEST_NAME}"):  # those finished
        prefix = data_prefix(place, folder_of_manifest(manifest), manifest.read_bytes())
        files = read_manifest(folder_of_manifest(manifest)).files
        keys |= {entry.sha256: prefix + name for name, entry in files.items()}
    return keys


def _commit(place: Place, folder: Path, data: bytes, temporary: Path) -> bytes:
    """Put a manifest; return the one that is there then: another's if it was first, unless that
    cannot be read, or its files are known to be damaged.

    Raises: ForeignOutputError where a newer tokflow made the one that is there.
    """
    key = manifest_key(place, folder)
    if is_known_damaged(folder):  # its new time tells other machines that it is not any more
        place.objects.put(key, data)
        return data
    if place.objects.put_new(key, data):
        return data
    there = place.objects.read(key)
    if there is None or not _is_same(there, temporary):
        place.objects.put(key, data)
        return data
    return there


def _is_same(there: bytes, temporary: Path) -> bool:
    """Return whether these are the bytes of a manifest of the output in `temporary`."""
    aside = temporary / ".there"
    keep_manifest(aside, there)
    try:
        return read_manifest(aside).fingerprint == read_manifest(temporary).fingerprint
    except CorruptOutputError:
        return False
    finally:
        shutil.rmtree(aside)


def publish_beside(place: Place, path: Path, content: bytes) -> None:
    """Put a file that is none of an output's: a verdict and `latest` are mirrored."""
    is_mirrored = path.name == LATEST or path.parent.name == VERDICTS_NAME
    key = mirror_key(place, path) if is_mirrored else place.key(path)
    place.objects.put(key, content)


def remove_segments(place: Place, folder: Path) -> None:
    """Remove the segments, of any machine, that the output in a folder was joined of."""
    segments = segments_folder(folder)
    for prefix in (mirror_key(place, segments), place.key(segments)):
        place.objects.remove([entry.key for entry in place.objects.listed(prefix)])


def remove_published(place: Place, folder: Path) -> None:
    """Remove the output at the URL that a folder stands for, its manifest first, and `latest` if
    it leads to it.

    What somebody puts there meanwhile, who makes it again, stays; if it may not be whole, without
    its manifest.
    """
    latest = folder.parent / LATEST
    is_newest = named_by(latest) == folder.resolve()
    key, files = manifest_key(place, folder), place.key(folder)
    before = {*place.objects.listed(files)}
    place.objects.remove([mirror_key(place, latest), key] if is_newest else [key])
    old = [entry.key for entry in place.objects.listed(files) if entry in before]
    place.objects.remove(old)
    again = place.objects.read(key) if old else None
    if again is not None and any(
        each.startswith(data_prefix(place, folder, again)) for each in old
    ):
        place.objects.remove([key])

"""Outputs put at a URL, whole or not at all, and removed there, with what nobody finished."""

import hashlib
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from tokflow.errors import CorruptOutputError, MissingOutputError, TokflowError
from tokflow.store.atomic import is_segments_folder, remove, segments_folder
from tokflow.store.integrity import Stored
from tokflow.store.listed_files import BESIDE, LATEST, CopiedRange, copies_in, equal_files, named_by
from tokflow.store.manifest import (
    MANIFEST_NAME,
    RUN_NAME,
    Manifest,
    damaged,
    folder_of_manifest,
    is_output_name,
    keep_manifest,
    read_manifest,
    sealed,
)
from tokflow.store.remote import Place
from tokflow.store.remote.cache import is_known_damaged, note_bytes, note_damage
from tokflow.store.remote.cached_files import fetched, key_of
from tokflow.store.remote.objects import Piece, for_each
from tokflow.store.requests import RemoteStoreError


def publish(place: Place, temporary: Path, folder: Path) -> None:
    """Put the finished output in `temporary` at the URL that `folder` stands for.

    When this returns, a whole output is there, and `temporary` has its manifest: if another writer
    was first, and its bytes differ, that is the other's, and the files in `temporary` are gone, to
    be fetched where they are needed.
    """
    data = (temporary / MANIFEST_NAME).read_bytes()
    prefix = place.data_prefix(folder, data)
    manifest = read_manifest(temporary)
    files = manifest.files
    in_segments, equal = _in_segments(place, folder), equal_files(temporary, folder)

    def put(name: str) -> None:
        entry = files.get(name)
        if entry is not None and entry.sha256 in in_segments:
            place.objects.copy(in_segments[entry.sha256], prefix + name, entry.num_bytes)
            return
        new, copied = temporary / name, dict[int, Piece]()
        whole = [CopiedRange(0, of, 0, new.stat().st_size) for of in equal.get(name, ())[:1]]
        for each in whole or copies_in(new):  # objects that have ranges of it
            is_here = each.path.is_relative_to(place.root)
            if is_here and (inside := place.output_folder(each.path)) is not None:
                start, stop = each.start_there, each.start_there + each.num_bytes
                copied[each.start] = Piece(key_of(place, inside, each.path), start, stop)
        place.objects.put_file(new, prefix + name, copied)

    def put_lacking() -> None:
        there = {entry.key for entry in place.objects.listed(prefix.rstrip("/"))}
        for_each(put, [name for name in names if prefix + name not in there])

    names = [*files, *([RUN_NAME] if (temporary / RUN_NAME).exists() else [])]
    for_each(put, names)
    there = _commit(place, folder, data, temporary, put_lacking)
    if there != data:
        for path in list(temporary.iterdir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        keep_manifest(temporary, there)
    note_bytes(manifest.num_bytes)


def _in_segments(place: Place, folder: Path) -> dict[str, str]:
    """Return the keys of the files of segments that an output is joined of, by their sha256: the
    server copies them, and they need not be on this disk."""
    keys: dict[str, str] = {}
    for manifest in segments_folder(folder).glob(f"[!.]*/{MANIFEST_NAME}"):  # those finished
        prefix = place.data_prefix(folder_of_manifest(manifest))
        files = read_manifest(folder_of_manifest(manifest)).files
        keys |= {entry.sha256: prefix + name for name, entry in files.items()}
    return keys


def _commit(
    place: Place, folder: Path, data: bytes, temporary: Path, put_lacking: Callable[[], None]
) -> bytes:
    """Put a manifest; return the one that is there then: another's if it was first, unless that
    cannot be read, or its files are known to be damaged. `put_lacking`: puts files again that are
    gone, which another machine has dropped of the same output meanwhile.

    Raises: ForeignOutputError where a newer tokflow made the one that is there.
    """
    key = place.manifest_key(folder)
    if is_known_damaged(folder):  # its new time tells other machines that it is not any more
        place.objects.put(key, data)
        return data
    if place.objects.put_new(key, data):
        return data
    there = place.objects.read(key)
    if there is None or not _is_same(there, temporary):
        place.objects.put(key, data)
        put_lacking()
        return data
    return there


def _is_same(there: bytes, temporary: Path) -> bool:
    """Return whether these are the bytes of a manifest of the output in `temporary`."""
    aside = temporary / ".there"
    keep_manifest(aside, there)
    try:
        old, new = read_manifest(aside), read_manifest(temporary)
        return old.recipe == new.recipe and old.dropped.keys() == new.dropped.keys()
    except CorruptOutputError:
        return False
    finally:
        shutil.rmtree(aside)


def drop_there(place: Place, output: Stored, manifest: Manifest) -> None:
    """Put an output without some of its files, as its manifest of now says, in the place of the
    whole one, whose files are removed; nothing where another machine has changed it.

    Whoever makes it again meanwhile looks for its files behind its manifest (`publish`), and where
    that comes first the one without files, all of which are there, is put once more.
    """
    folder, data, key = output.folder, sealed(manifest.fields()), place.manifest_key(output.folder)
    whole = (folder / MANIFEST_NAME).read_bytes()
    if whole == data or place.objects.read(key) != whole:
        return
    old, new = place.data_prefix(folder, whole), place.data_prefix(folder, data)
    sizes = {of.key: of.num_bytes for of in place.objects.listed(old.rstrip("/"))}
    kept = [name for name in (*manifest.files, RUN_NAME) if old + name in sizes]
    try:
        for_each(lambda of: place.objects.copy(old + of, new + of, sizes[old + of]), kept)
    except RemoteStoreError:
        if place.objects.read(key) == whole:
            raise
        return  # another machine was first, and has removed them
    place.objects.put(key, data)
    place.objects.remove(sizes)
    if place.objects.read(key) == whole:
        place.objects.put(key, data)


def remove_published(place: Place, folder: Path) -> None:
    """Remove the output at the URL that a folder stands for, its manifest first, and `latest` if
    it leads to it.

    What somebody puts there meanwhile, who makes it again, stays; if it may not be whole, without
    its manifest.
    """
    latest = folder.parent / LATEST
    is_newest = named_by(latest) == folder.resolve()
    key, files = place.manifest_key(folder), place.key(folder)
    before = {*place.objects.listed(files)}
    place.objects.remove([place.mirror_key(latest), key] if is_newest else [key])
    old = [entry.key for entry in place.objects.listed(files) if entry in before]
    place.objects.remove(old)
    again = place.objects.read(key) if old else None
    if again is not None and any(each.startswith(place.data_prefix(folder, again)) for each in old):
        place.objects.remove([key])


def find_unfinished(place: Place, dataset_folder: Path, *, seconds: float) -> dict[Path, int]:
    """Return what nobody finished at the URL of a dataset, by the paths that stand for it, and its
    bytes.

    This is: files of an output whose manifest is not there, or is that of other bytes; segments;
    uploads in parts that were begun. Its writers are taken to be gone if nothing has changed in it
    for `seconds`. The manifests on this disk must be those of the URL; it takes a request for each
    thousand objects.
    """
    limit = _ago(seconds)
    manifests = dataset_folder.rglob(MANIFEST_NAME)
    committed = {place.root / place.data_prefix(folder_of_manifest(path)) for path in manifests}
    found: dict[Path, int] = {}
    newest: dict[Path, int] = {}
    mirrored = f"{place.mirror_key(dataset_folder)}/"
    for entry in place.objects.listed(place.key(dataset_folder)):
        is_mirrored = entry.key.startswith(mirrored)
        there = place.mirror_path(entry.key) if is_mirrored else f"{place.root}/{entry.key}"
        if there is None:
            continue
        if (group := _group_of(Path(there), committed)) is not None:
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
    prefixes = place.mirror_key(path), place.key(path)  # manifests first
    entries = [entry for prefix in prefixes for entry in place.objects.listed(prefix)]
    if all(entry.modified_ns < _ago(seconds) for entry in entries):
        place.objects.remove([entry.key for entry in entries])
        key = place.key(path)
        for upload in place.objects.uploads(place.key(path.parent)):
            is_below = f"{upload.key}/".startswith(f"{key}/")
            if is_below and upload.begun_ns < _ago(seconds):
                place.objects.abort(upload)
        remove(path)


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


def broken_there(place: Place, outputs: Sequence[Stored]) -> list[list[TokflowError]]:
    """Return of each output, all of stores at URLs, an error for whatever there is not as its
    manifest says.

    Several are looked at at once. The manifest must be there, byte for byte; the files on this disk
    go, and come again; and no other object may be among theirs.
    """
    problems = for_each(partial(_of_manifest, place), outputs)
    looks: list[tuple[int, Callable[[], list[TokflowError]]]] = []
    for number, output in enumerate(outputs):
        if not problems[number]:
            files = [partial(_of_file, place, output, name) for name in output.manifest.files]
            looks += [(number, look) for look in (*files, partial(_unlisted, place, output))]
    for (number, _), found in zip(looks, for_each(lambda of: of[1](), looks), strict=True):
        problems[number] += found
    return problems


def _of_manifest(place: Place, output: Stored) -> list[TokflowError]:
    there, data = place.objects.read(place.manifest_key(output.folder)), b""
    with suppress(FileNotFoundError):  # another process has just found that it is not there
        data = (output.folder / MANIFEST_NAME).read_bytes()
    if there == data:
        return []
    found = "none" if there is None else f"sha256 {hashlib.sha256(there).hexdigest()[:16]}…"
    expected = f"the manifest listed before, sha256 {hashlib.sha256(data).hexdigest()[:16]}…"
    return [damaged(output.folder, expected, found)]


def _of_file(place: Place, output: Stored, name: str) -> list[TokflowError]:
    (output.folder / name).unlink(missing_ok=True)
    try:
        fetched(place, output, name)
    except (CorruptOutputError, MissingOutputError) as error:
        return [error]
    return []


def _unlisted(place: Place, output: Stored) -> list[TokflowError]:
    """Return an error for each object beside those of the output that nobody listed."""
    with suppress(FileNotFoundError):  # of the manifest, as above
        prefix = place.data_prefix(output.folder)
        own = (MANIFEST_NAME, RUN_NAME, *BESIDE)
        known = {prefix + name for name in (*output.manifest.files, *own)}
        return [
            CorruptOutputError(
                where=f"{place.url}/{entry.key}",
                expected="no object",
                found="one that the manifest does not list",
                remedy="remove it",
            )
            for entry in place.objects.listed(prefix.rstrip("/"))
            if entry.key not in known
        ]
    return []


def note_lacking(place: Place, folders: Iterable[Path]) -> int:
    """Return of how many outputs, of those in these folders, files are not at their URL with the
    sizes of their manifests; this disk remembers them as damaged, so a run makes them again.

    It takes a request for each thousand objects of their datasets. The manifests on this disk must
    be those of the URL.
    """
    datasets: dict[str, list[Path]] = {}
    for folder in folders:
        datasets.setdefault(place.key(folder).split("/")[0], []).append(folder)
    num_lacking = 0
    for dataset, outputs in datasets.items():
        sizes = {entry.key: entry.num_bytes for entry in place.objects.listed(dataset)}
        for folder in outputs:
            prefix, files = place.data_prefix(folder), read_manifest(folder).files.items()
            if any(sizes.get(prefix + name) != entry.num_bytes for name, entry in files):
                note_damage(folder)
                num_lacking += 1
    return num_lacking

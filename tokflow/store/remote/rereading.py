"""Objects at the URLs of outputs, compared with manifests: every byte, or only their sizes."""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from tokflow.errors import CorruptOutputError, MissingOutputError, TokflowError
from tokflow.store.integrity import Stored
from tokflow.store.listed_files import broken_file
from tokflow.store.manifest import MANIFEST_NAME, RUN_NAME, damaged, read_manifest
from tokflow.store.remote.cached_files import drop_cached, fetched
from tokflow.store.remote.mirror import note_damage
from tokflow.store.remote.objects import for_each
from tokflow.store.remote.places import Place


def broken_there(place: Place, outputs: Sequence[Stored]) -> list[list[TokflowError]]:
    """Return of each output, all of stores at URLs, an error for whatever there is not as its
    manifest says.

    Several are looked at at once. The manifest must be there, byte for byte; the files on this disk
    go, and come again; and no other object may be among theirs.
    """
    here = [(output, _manifest_of(output)) for output in outputs]
    problems = for_each(partial(_of_manifest, place), here)
    same = [number for number, found in enumerate(problems) if not found]
    files = [(number, name) for number in same for name in outputs[number].manifest.files]
    of_files = for_each(lambda of: _of_file(place, outputs[of[0]], of[1]), files)
    unlisted = for_each(partial(_unlisted, place), [here[number] for number in same])
    for number, found in zip(
        [*(number for number, _ in files), *same], of_files + unlisted, strict=True
    ):
        problems[number] += found
    return problems


def _manifest_of(output: Stored) -> bytes:
    """Return the bytes of a manifest on this disk; none where another process has just found that
    it is not at the URL any more."""
    with suppress(FileNotFoundError):
        return (output.folder / MANIFEST_NAME).read_bytes()
    return b""


def _of_manifest(place: Place, here: tuple[Stored, bytes]) -> list[TokflowError]:
    output, data = here
    there = place.objects.read(place.manifest_key(output.folder))
    if there == data:
        return []
    found = "none" if there is None else f"sha256 {hashlib.sha256(there).hexdigest()[:16]}…"
    expected = f"the manifest listed before, sha256 {hashlib.sha256(data).hexdigest()[:16]}…"
    return [damaged(output.folder, expected, found)]


def _of_file(place: Place, output: Stored, name: str) -> list[TokflowError]:
    path = output.folder / name
    drop_cached(path)
    try:
        is_here = fetched(place, path).exists()
    except (CorruptOutputError, MissingOutputError) as error:
        return [error]
    problem = None if is_here else broken_file(output.folder, name, output.manifest.files[name])
    return [] if problem is None else [problem]


def _unlisted(place: Place, here: tuple[Stored, bytes]) -> list[TokflowError]:
    """Return an error for each object beside those of the output that nobody listed."""
    output, data = here
    prefix = place.data_prefix(output.folder, data)
    names = (*output.manifest.files, MANIFEST_NAME, RUN_NAME)
    known = {prefix + name for name in names}
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
    prefix = place.data_prefix(folder)
    files = read_manifest(folder).files
    return any(sizes.get(prefix + name) != entry.num_bytes for name, entry in files.items())

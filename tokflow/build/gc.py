"""Outputs that the dataset, as it is declared now, does not refer to."""

import shutil
from itertools import islice
from pathlib import Path

from tokflow.build.dataset import Dataset
from tokflow.build.plan import make_plan
from tokflow.errors import CorruptOutputError, MissingOutputError
from tokflow.store.atomic import LATEST, remove_empty
from tokflow.store.manifest import MANIFEST_NAME
from tokflow.store.stored_outputs import STAGE_FOLDERS, StoredOutput, Unreadable, made_in, walk
from tokflow.tokens.shard_segments import SEGMENTS_SUFFIX, is_segments_folder


def find_garbage(dataset: Dataset, *, keep: int) -> dict[Path, int]:
    """Return the outputs that no run of `dataset` would use, without the newest ones: the folder
    of each and its bytes.

    What the dataset refers to now always stays, and so do the `keep` outputs of each stage and
    file, or export, that were made last (it counts among them), and what `latest` of an export
    leads to that is still declared. Conversions stay, which were asked for by hand; so do raw files
    that were fetched, and what a newer tokflow made. Damaged outputs go, and unfinished segments.

    Raises: MissingOutputError where the dataset is not built: what it refers to is not known.
    """
    plan = make_plan(dataset)
    if not plan.is_up_to_date:
        raise MissingOutputError(
            where=dataset.name,
            expected="a dataset that is built, to know what it refers to",
            found=f"{len(plan.missing):,} of {len(plan.planned):,} outputs missing"
            if plan.missing
            else f"{plan.bad[0].name}, which cannot be read",
            remedy="run `tokflow run` first",
        )
    folders = (dataset.folder / "tokens", dataset.folder / "exports")
    hidden = (path for folder in folders for path in folder.rglob(f".*{SEGMENTS_SUFFIX}"))
    unfinished = sorted(filter(is_segments_folder, hidden))
    used = {planned.folder for planned in plan.planned}
    stored = [found for stage in STAGE_FOLDERS for found in walk(dataset.folder / stage)]
    damaged = [
        found.folder
        for found in stored
        if isinstance(found, Unreadable) and isinstance(found.error, CorruptOutputError)
    ]
    published = {
        (planned.folder.parent / LATEST).resolve() for planned in plan.planned if planned.folder
    }
    older = [
        found.folder
        for folder in sorted({of.folder.parent for of in stored if isinstance(of, StoredOutput)})
        for found in islice(made_in(folder), keep, None)
        if found.folder.resolve() not in published and not found.is_converted
    ]
    return {path: _num_bytes(path) for path in [*older, *damaged, *unfinished] if path not in used}


def remove(folder: Path) -> None:
    """Remove an output and what leads to it, and the folders that are empty without it.

    Its manifest goes first, so that no reader takes half of it for whole.
    """
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    latest = folder.parent / LATEST
    if latest.is_symlink() and latest.resolve() == folder.resolve():
        latest.unlink()
    shutil.rmtree(folder)
    remove_empty(folder.parents)


def _num_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

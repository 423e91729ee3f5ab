"""Outputs that the dataset, as it is declared now, does not refer to."""

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from tokflow.errors import CorruptOutputError, MissingOutputError, TokflowError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.output import SOURCE_STAGES
from tokflow.pipeline.plan import Plan, make_plan
from tokflow.store.atomic import is_in_use, is_leftover
from tokflow.store.latest import LATEST, named_by
from tokflow.store.manifest import is_output_name
from tokflow.store.segments import are_segments_here, is_segments_folder
from tokflow.store.store import Store, StoredOutput
from tokflow.store.stored_outputs import BLOCKS_PREFIX, STAGE_FOLDERS, Unreadable, made_in, walk

LEFTOVER_SECONDS = 86_400
"""What another machine has not finished, on a disk that both have or at a URL, is garbage when
nothing in it has changed for so long."""


def find_garbage(dataset: Dataset, *, keep: int) -> dict[Path, int]:
    """Return the outputs that no run of `dataset` would use, without the newest ones: the folder
    of each and its bytes.

    What the dataset refers to now always stays, and so do the `keep` outputs of each stage and
    file, or export, that were made last (it counts among them), and what `latest` of an export
    leads to that is still declared; raw files stay that were fetched whole, and what a newer
    tokflow made. Damaged outputs go, and unfinished segments and what killed processes left, of
    other machines and at a URL a day later, unless a process works with them; and what was read of
    another version of a raw file.

    Raises: MissingOutputError where the dataset is not built: what it refers to is not known.
    A source that only mixtures have built, up to its splits, is.
    """
    plan = make_plan(dataset)
    if not plan.is_up_to_date and not _is_built_for_mixtures(plan):
        raise MissingOutputError(
            where=dataset.name,
            expected="a dataset that is built, to know what it refers to",
            found=_what_is_missing(plan),
            remedy=f"build {dataset.name} first by `tokflow run`",
        )
    used = {planned.folder for planned in plan.planned} | _used_blocks(plan.graph)
    stored = [
        found for stage in STAGE_FOLDERS for found in walk(dataset.store, dataset.folder / stage)
    ]
    unreadable = [found for found in stored if isinstance(found, Unreadable)]
    damaged = [of.folder for of in unreadable if isinstance(of.error, CorruptOutputError)]
    published = {
        named_by(planned.folder.parent / LATEST) for planned in plan.planned if planned.folder
    }
    older = [
        found.folder
        for folder in sorted({of.folder.parent for of in stored if isinstance(of, StoredOutput)})
        for found in islice(made_in(dataset.store, folder), keep, None)
        if found.folder.resolve() not in published
    ]
    unfinished = sorted(_unfinished(dataset.store, dataset.folder))
    garbage = [path for path in (*older, *damaged, *unfinished) if path not in used]
    there = dataset.store.unfinished(dataset.folder, seconds=LEFTOVER_SECONDS)
    return {path: _num_bytes(dataset.store, path) for path in garbage} | there


def _is_built_for_mixtures(plan: Plan) -> bool:
    """Return whether all that a mixture needs is built, and nothing was ever made of it: no older
    sequences or exports are there that a run would replace."""
    is_needed = any(of.stage in SOURCE_STAGES for of in plan.missing)
    later = [stage for stage in STAGE_FOLDERS if stage in ("sequences", "exports")]
    is_made = any(
        True for stage in later for _ in walk(plan.dataset.store, plan.dataset.folder / stage)
    )
    return not (plan.bad or is_needed or is_made)


def _what_is_missing(plan: Plan) -> str:
    if plan.missing:
        return f"{len(plan.missing):,} of {len(plan.planned):,} outputs missing"
    return f"{plan.bad[0].name}, which cannot be read"


def _used_blocks(graph: BuildGraph) -> set[Path]:
    """Return the folders with what was read of raw files that are fetched as they are read."""
    return {raw.path.parent for raw in graph.files.known if raw.remote}


def _unfinished(store: Store, folder: Path) -> Iterator[Path]:
    """Yield what no run has finished in the folder of a dataset; outputs are not entered."""
    for inner, folders, files in os.walk(folder):
        for path in (Path(inner, name) for name in (*folders, *files) if name.startswith(".")):
            if _is_unfinished(store, path):
                yield path
        folders[:] = [name for name in folders if not _is_written_whole(Path(inner, name))]


def _is_unfinished(store: Store, path: Path) -> bool:
    if is_segments_folder(path) and not store.is_here:
        return False  # the store tells
    if is_segments_folder(path) or are_segments_here(path):
        return not is_in_use(path, seconds=LEFTOVER_SECONDS)
    return path.name.startswith(BLOCKS_PREFIX) or is_leftover(path, seconds=LEFTOVER_SECONDS)


def _is_written_whole(folder: Path) -> bool:
    """Return whether a folder is an output, or what is to become one, or blocks of a raw file, and
    no key's folder."""
    is_temporary = folder.name.startswith(".") and folder.suffix == ".tmp"
    is_temporary = is_temporary or folder.name.startswith(BLOCKS_PREFIX)
    is_temporary = is_temporary or are_segments_here(folder)
    return is_temporary or is_output_name(folder.name) or is_segments_folder(folder)


def remove_all(store: Store, paths: Collection[Path]) -> None:
    """Remove what `find_garbage` found, whole outputs and what is not finished, and the folders
    that are empty without it; what somebody works with, or has written to since, stays."""
    store.remove_all(paths, seconds=LEFTOVER_SECONDS)


def _num_bytes(store: Store, folder: Path) -> int:
    if not store.is_here and is_output_name(folder.name):
        with suppress(TokflowError):
            return store.read(folder).manifest.num_bytes
    return sum(path.stat().st_size for path in (folder, *folder.rglob("*")) if path.is_file())

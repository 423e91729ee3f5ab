"""Room on the disk of a store: what a run needs of it, outputs that are not needed any more, and
tokens that go when the exports stand: `keep: exports`, `tokflow gc --tokens`."""

import os
import shutil
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from tokflow.documents import DocumentsConfig
from tokflow.errors import CorruptOutputError, MissingOutputError, TokflowError
from tokflow.formatting import size
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.plan import Plan, PlannedOutput, make_plan
from tokflow.pipeline.stages import for_mixtures
from tokflow.stage import RAW
from tokflow.store.listed_files import LATEST, freed_bytes, named_by
from tokflow.store.manifest import is_output_name
from tokflow.store.store import Store, StoredOutput
from tokflow.store.stored_outputs import Unreadable, made_in, walk

LEFTOVER_SECONDS = 86_400
"""What another machine has not finished, on a disk that both have or at a URL, is garbage when
nothing in it has changed for so long."""

PLAIN_SHARE = 0.2
"""With less than this share of the room that a run is likely to need, it does not begin."""


def likely_bytes(outputs: Iterable[PlannedOutput]) -> int:
    """Return the likely bytes of tokens and exports among outputs: half of those of the raw files,
    as of tokens of 2 bytes for 4 of text, or less where files are links to those of an earlier
    version. 0 where a limit makes them fewer; exports of a mixture are not counted."""
    num_bytes = 0
    for planned in outputs:
        graph, step = planned.output.graph, planned.output.step
        is_large = step.has_engine or (step.has_latest and not graph.of_sources)
        if is_large and graph.dataset.of(DocumentsConfig).is_as_usual("limit"):
            num_bytes += planned.num_bytes
    return num_bytes // 2


def bytes_to_write(plan: Plan) -> int:
    """Return the likely bytes of tokens and exports of which no version was ever made."""
    return likely_bytes(of for of in plan.missing if of.output.is_first_of_kind)


def free_bytes(store: Store) -> int | None:
    """Return the room on the disk of a store; None of one at a URL."""
    if store.is_cached:
        return None
    return shutil.disk_usage(
        next(of for of in (store.root, *store.root.parents) if of.exists())
    ).free


def check_room(plan: Plan) -> None:
    """Make sure that the room for what a run would write is not plainly too small.

    Raises: TokflowError.
    """
    needed, free = bytes_to_write(plan), free_bytes(plan.graph.dataset.store)
    if free is not None and free < PLAIN_SHARE * needed:
        raise TokflowError(
            where=plan.graph.dataset.store.name,
            expected=f"room for tokens and exports of about {size(needed)}",
            found=f"{size(free)} free",
            remedy="remove what `tokflow gc` lists, name another disk by `store`, or add --force",
        )


def find_garbage(dataset: Dataset, *, keep: int) -> dict[Path, int]:
    """Return the outputs that no run of `dataset` would use, without the newest ones: the folder
    of each and the bytes that are free without it, and those before it.

    What the dataset refers to now always stays, and so do the `keep` outputs of each stage and
    file, or export, that were made last (it counts among them), and what `latest` of an export
    leads to that is still declared; raw files stay that were fetched whole, and what a newer
    tokflow made. Damaged outputs go, and unfinished segments and what killed processes left, of
    other machines and at a URL a day later, unless a process works with them; and what was read of
    another version of a raw file.

    Raises: MissingOutputError where the dataset is not built: what it refers to is not known.
    A source that only mixtures have built, up to its splits, is, as long as no older sequences or
    exports are there that a run would replace.
    """
    plan, for_mixture = make_plan(dataset), for_mixtures(dataset.stages)
    later = [dataset.folder / of.path for of in dataset.stages if of not in for_mixture]
    lacking = plan.bad or [of for of in plan.missing if of.output.step in for_mixture]
    if lacking or (plan.missing and any(True for of in later for _ in walk(dataset.store, of))):
        found = f"{len(plan.missing):,} of {len(plan.planned):,} outputs missing"
        raise MissingOutputError(
            where=dataset.name,
            expected="a dataset that is built, to know what it refers to",
            found=found if plan.missing else f"{plan.bad[0].name}, which cannot be read",
            remedy=f"build {dataset.name} first by `tokflow run`",
        )
    used = {planned.folder for planned in plan.planned}
    # The folders with what was read of raw files that are fetched as they are read.
    blocks = {raw.path.parent for raw in plan.graph.known_files.values() if raw.remote}
    fetched = dataset.folder / RAW
    stored = [
        found
        for found in walk(dataset.store, dataset.folder)
        if is_output_name(found.folder.name)  # else a copy, which somebody put there
        and fetched not in found.folder.parents
    ]
    unreadable = [of for of in stored if isinstance(of, Unreadable)]
    damaged = [of.folder for of in unreadable if isinstance(of.error, CorruptOutputError)]
    published = {named_by(folder.parent / LATEST) for folder in used if folder}
    older = [
        found.folder
        for folder in sorted({of.folder.parent for of in stored if isinstance(of, StoredOutput)})
        for found in islice(made_in(dataset.store, folder), keep, None)
        if found.folder.resolve() not in published
    ]
    unfinished = dataset.store.unfinished(dataset.folder, seconds=LEFTOVER_SECONDS)
    return dataset.store.freed_bytes(
        [path for path in (*older, *damaged) if path not in used],
        {path: num for path, num in unfinished.items() if path not in blocks},
    )


def unreferred_bytes(dataset: Dataset, used: Collection[Path]) -> int:
    """Return the bytes that are free without all outputs of `dataset` but those in `used` folders,
    found by their folders' names. Raw files that were fetched stay."""
    outputs: list[Path] = []
    for inner, folders, _ in os.walk(dataset.folder):
        outputs += [Path(inner, of) for of in folders if is_output_name(of)]
        passed = [RAW] if Path(inner) == dataset.folder else []
        passed += [of for of in folders if of.startswith(".") or is_output_name(of)]
        folders[:] = [of for of in folders if of not in passed]
    unused = [path for path in outputs if path not in used]
    return sum(dataset.store.freed_bytes(unused, {}).values())


def remove_all(store: Store, paths: Collection[Path]) -> None:
    """Remove what `find_garbage` found, whole outputs and what is not finished, and the folders
    that are empty without it; what somebody works with, or has written to since, stays."""
    store.remove_all(paths, seconds=LEFTOVER_SECONDS)


Spare: TypeAlias = Sequence[tuple[StoredOutput, Sequence[str]]]
"""Outputs with the files that may go, by their names."""


def spare_tokens(graph: BuildGraph) -> Spare:
    """Return the outputs whose files nothing needs while the exports stand, and those of which a
    killed process has left some; nothing where an export is missing, or none is declared.

    The exports of a mixture, too, must stand that a graph of a source is made for.
    """
    graphs = {id(of): of for of in (graph, graph.made_for)}.values()
    if not any(of.dataset.exports for of in graphs) or any(of.makes_exports for of in graphs):
        return []
    found: list[tuple[StoredOutput, Sequence[str]]] = []
    for output in graph.outputs():
        with suppress(TokflowError, OSError):
            manifest = output.manifest()
            names = output.step.spare_files(manifest)
            left = ((output.folder / of).exists() for of in manifest.dropped)
            if names or any(left):
                found.append((output.open(), names))
    return found


def num_spare_bytes(spare: Spare) -> int:
    """Return the bytes that are free without these files."""
    num_bytes = 0
    here: list[Path] = []
    for of, names in spare:
        if of.store.is_cached:
            num_bytes += sum(of.manifest.files[name].num_bytes for name in names)
        else:
            here += [of.folder / name for name in (*names, *of.manifest.dropped)]
    return num_bytes + sum(freed_bytes(here).values())


def drop(spare: Spare) -> None:
    """Remove files that may go; a process that is killed meanwhile leaves whole outputs."""
    for of, names in spare:
        of.store.drop(of, names)


def drop_tokens(graph: BuildGraph) -> int:
    """Drop what `keep: exports` lets go, of a dataset and of a mixture's sources; return the bytes
    that are free without it."""
    num_bytes = 0
    for each in (graph, *graph.of_sources.values()):
        each.__dict__.pop("makes_exports", None)  # of the time before they were made
        if each.dataset.keep == "exports":
            spare = spare_tokens(each)
            num_bytes += num_spare_bytes(spare)
            drop(spare)
    return num_bytes

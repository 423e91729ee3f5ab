"""State of a dataset, as a digest: what has not moved since a look needs no plan."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from tokflow.components.dagster_names import asset_keys
from tokflow.components.file_partitions import FileChanges
from tokflow.components.history import code_version
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixtures.mixture import SOURCE_STAGES
from tokflow.pipeline.output import FILE_STAGES
from tokflow.raw.hashes import stamp_of
from tokflow.store.manifest import MANIFEST_NAME, OWN_FOLDER
from tokflow.store.store import Store

INPUTS_TAG = "tokflow/inputs"
"""On a build: the digest of the inputs that it saw."""

CALM_SECONDS = 10.0
"""A file that changed more recently may still be being written."""


def being_written(changes: FileChanges, *, now: float) -> tuple[str, ...]:
    """Return the keys of the raw files that changed within the last seconds or, by a clock that
    differs, will have changed."""
    return tuple(
        key
        for key, stamp in changes.stamps.items()
        if now - max(stamp.mtime_ns, stamp.ctime_ns) / 1e9 < CALM_SECONDS
    )


def digest_of(*values: Any) -> str:
    """Return a short text that is another one for other values."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def inputs_digest(changes: FileChanges) -> str:
    """Return a digest of what decides the outputs of a dataset: files, config and code.

    Files elsewhere count by their names alone, and those whose versions are listed, as those of the
    hub and of object stores, by these.

    Raises: TokflowError where the tokenizer's own files cannot be found.
    """
    graph, sources = changes.graph, changes.graph.dataset.sources
    of_hub = [(key, of.hub.content_id) for key, of in graph.sources.items() if of.hub is not None]
    listed = [(key, of.version) for key, of in graph.sources.items() if of.version is not None]
    return digest_of(
        sorted(graph.sources),
        *of_hub,
        *listed,
        sorted(changes.stamps.items()),
        _tokenizer_stamps(graph),
        graph.dataset,
        graph.dataset.base,
        [code_version(graph.dataset, *asset) for asset in asset_keys(graph.dataset)],
        *((of, [code_version(of, stage) for stage in SOURCE_STAGES]) for of in sources),
    )


def _tokenizer_stamps(graph: BuildGraph) -> list[Any]:
    if graph.dataset.tokenizer.kind == "trained":
        return []
    source = graph.tokenizer_source()
    return [stamp_of(path) for path in source.local_files()] if source.is_local else []


def state_digest(instance: dg.DagsterInstance, changes: FileChanges) -> str:
    """Return a digest of the inputs, of what Dagster has and, if outputs are built by themselves,
    of what is in the store."""
    dataset = changes.graph.dataset
    records = instance.get_asset_records(list(asset_keys(dataset).values()))
    latest = [record.asset_entry.last_materialization_record for record in records]
    return digest_of(
        inputs_digest(changes),
        changes.added,
        changes.removed,
        sorted(record.storage_id for record in latest if record),
        sorted(_stored(changes.graph)) if dataset.automation else (),
    )


def _stored(graph: BuildGraph) -> Iterator[tuple[str, str, int]]:
    """Yield each folder of an output with the time when a file was last added to it or deleted."""
    for source in graph.mixture.graphs.values() if graph.mixture else ():
        yield from _stored(source)
    folder = graph.dataset.folder
    places = [folder / "tokenizer"]
    places += [folder / stage / key for stage in FILE_STAGES for key in graph.partitions]
    for place in places:
        yield from _folders_in(graph.dataset.store, place)
    for config in graph.dataset.exports:
        if not graph.dataset.store.is_here:
            yield from _folders_in(graph.dataset.store, folder / "exports" / config.name)
            continue
        for path, _, _ in os.walk(folder / "exports" / config.name):
            yield "", path, os.stat(path).st_mtime_ns  # noqa: PTH116 (of a text)


def _folders_in(store: Store, place: Path) -> Iterator[tuple[str, str, int]]:
    """Yield the outputs of one stage and partition; what is hidden is unfinished.

    Of one that is elsewhere the time is that of its manifest there: files of it come and go here.
    """
    is_elsewhere = not store.is_here
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_dir(
                    follow_symlinks=not is_elsewhere
                ):
                    names = (MANIFEST_NAME,) if is_elsewhere else ("", OWN_FOLDER)
                    for path in (f"{entry.path}/{name}" for name in names):
                        yield str(place), path, _changed_ns(path)
    except (FileNotFoundError, NotADirectoryError):
        return


def _changed_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 (of a text)
    except (FileNotFoundError, NotADirectoryError):
        return 0

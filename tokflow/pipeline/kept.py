"""Tokens that go when the exports stand: `keep: exports`, `tokflow gc --tokens`."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from tokflow.errors import TokflowError
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.results import BuildResult
from tokflow.store.links import freed_bytes
from tokflow.store.store import StoredOutput

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


def with_tokens_dropped(built: BuildResult, graph: BuildGraph) -> BuildResult:
    """Return the result of a build of everything, after which tokens may go."""
    return built if built.failed else replace(built, dropped_bytes=drop_tokens(graph))

"""Bad raw files of one build, which are left out of its graph: see `bad_files`."""

from collections.abc import Generator
from dataclasses import replace

from tokflow.pipeline.bad_files import (
    check_content,
    file_of,
    is_bad_file,
    note_bad_files,
    reason_of,
    skips_bad_files,
    too_many,
)
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.results import BuildResult, StageFailure
from tokflow.raw import BadFile, RawPartition


class SkippedFiles:
    """The bad files that a build finds, and leaves out between two stages."""

    def __init__(self, graph: BuildGraph) -> None:
        self._graph = graph
        self.failed: list[StageFailure] = []
        """Failures of everything else, and of bad files where they are too many."""
        self._is_on = skips_bad_files(graph.dataset)
        self._waiting: dict[str, StageFailure] = {}
        """Failures of bad files, by their keys, that are to be left out."""
        self.found: list[StageFailure] = []
        """Those that were left out."""

    def take(self, failure: StageFailure) -> StageFailure:
        """Take a failure; return it, marked if it is that of a file to be left out."""
        key = self._file_of(failure) if self._is_on else None
        if key is None:
            self.failed.append(failure)
            return failure
        self._waiting[key] = replace(failure, is_left_out=True)
        return self._waiting[key]

    def check(self, raw: RawPartition) -> None:
        """Raise BadContentError for a file of no bytes where bad files are left out."""
        if self._is_on:
            check_content(raw)

    def _file_of(self, failure: StageFailure) -> str | None:
        graph = self._graph
        if not is_bad_file(failure.error):
            return None
        sources = graph.listed.get(failure.name, tuple(graph.sources.values()))
        return file_of(failure.error, sources, graph.known_files)

    def add(self, built: BuildResult, name: str) -> None:
        """Add what failed of a mixture's source, and what was left out of it."""
        for own, of_source in ((self.failed, built.failed), (self.found, built.bad_files)):
            own += [replace(of, name=f"{name}/{of.name}", packing="") for of in of_source]

    def leave_out(self) -> Generator[StageFailure, None, bool]:
        """Leave out what was found since the last time; yield the failures of all of it where there
        are too many, or no other file. Returns True where tokens of others may be other ones."""
        dataset, listing = self._graph.dataset, self._graph.listing
        bad, self._waiting = self._waiting, {}
        num_bad = len(listing.bad) + len(bad)
        is_all = bad.keys() >= listing.sources.keys()
        if bad and (is_all or num_bad > dataset.raw.max_bad_files):
            for of in bad.values():
                error = of.error if is_all else too_many(of.explained, num_bad, dataset)
                self.failed.append(replace(of, error=error, is_left_out=False))
                yield self.failed[-1]
        elif bad:
            self.found += bad.values()
            files = {
                key: BadFile(source=listing.sources[key], reason=reason_of(of.explained))
                for key, of in bad.items()
            }
            return self._graph.leave_out(files)
        return False

    def keep(self) -> None:
        """Keep for plans what is left out."""
        if self._is_on:
            graph = self._graph
            note_bad_files(graph.dataset, graph.listing.bad, graph.known_files)

"""Failures of the last builds, kept so that a plan says what went wrong with an output, and when;
and bad raw files of one build, which are left out of its graph: see `raw_files`.

    <store>/<dataset>/failures.json

A failure is known by all that could change it: the output's fingerprint and what the config makes
an error; of a raw file that could not be fetched, its addresses. So it is gone when the file or the
config changes, and when the output is made.
"""

import hashlib
import json
from collections.abc import Generator, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tokflow.errors import BadContentError, BadDocumentError, RawFileError, TokflowError
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.raw_files import file_of, keep, note_bad_files, read_kept
from tokflow.pipeline.results import BuildResult, StageFailure
from tokflow.raw import BadFile, RawPartition

FAILURES_NAME = "failures.json"

MAX_FAILURES = 1_000
"""More are not kept: what fails so often fails for one reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PastFailure:
    """A failure of an output that was to be made."""

    stage: str
    name: str
    message: str
    packing: str = ""
    """Of sequences: as in `Output`."""
    time: str
    """When it failed, in UTC, such as `2026-11-22T03:00:07+00:00`."""

    @property
    def title(self) -> str:
        """`tokens a.jsonl`, `sequences a.jsonl (short)` or `tokenizer`: how lists call it."""
        packing = f"({self.packing})" if self.packing else ""
        return " ".join(filter(None, dict.fromkeys([self.stage, self.name, packing])))


def failure_key(graph: BuildGraph, stage: str, name: str, packing: str = "") -> str | None:
    """Return by what a failure of an output is known again; None where nothing tells that.

    `name`, `packing`: as those of an `Output`, of the raw files a partition key.
    """
    dataset = graph.dataset
    try:
        if graph.steps.get(stage) is None:
            decides = [source.url for source in graph.partitions[name]]
        else:
            errors = dataset.documents.model_dump_json(), dataset.tokenizer.model_dump_json()
            decides = [graph.named(stage, name, packing).fingerprint, *errors]
    except (TokflowError, OSError, LookupError, StopIteration):  # of an export that is gone, say
        return None
    return hashlib.sha256(json.dumps([stage, name, *decides]).encode()).hexdigest()[:32]


def note_failures(graph: BuildGraph, failed: Sequence[StageFailure], tried: Iterable[str]) -> None:
    """Keep failures of a build that has just ended, and drop those that are no longer true.

    `tried`: the partitions that it was to build. Where nothing fails, and nothing has, nothing is
    written. No server is asked for anything, and nothing is raised.
    """
    known = read_kept(graph.folder / FAILURES_NAME, PastFailure)
    if not (failed or known):
        return
    with suppress(TokflowError, OSError):
        has_raw = set(tried) - {each.name for each in failed if each.is_raw}
        kept = {key: of for key, of in known.items() if _is_still_true(graph, key, of, has_raw)}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for of in failed:
            is_known = of.is_raw or _has_all_raw(graph, of.stage, of.name, has_raw)
            if is_known and (key := failure_key(graph, of.stage, of.name, of.packing)):
                fields = {"stage": of.stage, "name": of.name, "packing": of.packing}
                kept[key] = PastFailure(**fields, message=str(of.explained), time=now)
        if kept != known:
            newest = sorted(kept.items(), key=lambda item: item[1].time)[-MAX_FAILURES:]
            keep(graph.folder / FAILURES_NAME, dict(newest))


def _is_still_true(graph: BuildGraph, key: str, of: PastFailure, has_raw: Set[str]) -> bool:
    """Return whether a failure may be met again; those that a build did not try are."""
    if graph.steps.get(of.stage) is None:
        return of.name not in has_raw and failure_key(graph, of.stage, of.name) == key
    if not _has_all_raw(graph, of.stage, of.name, has_raw):
        return of.name in graph.partitions or not graph.is_of_file(of.stage)
    is_same = failure_key(graph, of.stage, of.name, of.packing) == key
    return is_same and not graph.named(of.stage, of.name, of.packing).is_made


def _has_all_raw(graph: BuildGraph, stage: str, name: str, has_raw: Set[str]) -> bool:
    """Return whether the raw files that an output goes back to are on this disk."""
    return has_raw >= ({name} if graph.is_of_file(stage) else graph.partitions.keys())


class SkippedFiles:
    """The bad files that a build finds, and leaves out between two stages."""

    def __init__(self, graph: BuildGraph) -> None:
        self._graph = graph
        self.failed: list[StageFailure] = []
        """Failures of everything else, and of bad files where they are too many."""
        self._is_on = graph.dataset.raw.on_bad_file == "skip"
        self._waiting: dict[str, StageFailure] = {}
        """Failures of bad files, by their keys, that are to be left out."""
        self.found: list[StageFailure] = []
        """Those that were left out."""

    def take(self, failure: StageFailure) -> StageFailure:
        """Take a failure; return it, marked if it is that of a file to be left out."""
        key, graph = None, self._graph
        if self._is_on and isinstance(failure.error, BadContentError | BadDocumentError):
            sources = graph.listed.get(failure.name, tuple(graph.sources.values()))
            key = file_of(failure.error, sources, graph.known_files)
        if key is None:  # of what may be well later
            self.failed.append(failure)
            return failure
        self._waiting[key] = replace(failure, is_left_out=True)
        return self._waiting[key]

    def check(self, raw: RawPartition) -> None:
        """Raise BadContentError for a file of no bytes, as a download that failed leaves it, where
        bad files are left out."""
        for of in raw.files if self._is_on else ():
            if not of.num_bytes:
                remedy = "download the file again, or remove it"
                fields = {"expected": "content", "found": "0 bytes", "remedy": remedy}
                raise BadContentError(where=of.path, **fields)

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
                error, most = of.error, f"raw.max_bad_files is {dataset.raw.max_bad_files:,}"
                if not is_all:
                    more = f"or raise the limit: {num_bad:,} files are bad, and {most}"
                    fields = of.explained.fields()
                    error = RawFileError(**{**fields, "remedy": f"{fields['remedy']}, {more}"})
                self.failed.append(replace(of, error=error, is_left_out=False))
                yield self.failed[-1]
        elif bad:
            self.found += bad.values()
            files = {}
            for key, of in bad.items():
                why = of.explained
                reason = f"expected {why.expected}, found {why.found}; {why.remedy}"
                files[key] = BadFile(source=listing.sources[key], reason=reason)
            return self._graph.leave_out(files)
        return False

    def keep(self) -> None:
        """Keep for plans what is left out."""
        if self._is_on:
            graph = self._graph
            note_bad_files(graph.dataset, graph.listing.bad, graph.known_files)

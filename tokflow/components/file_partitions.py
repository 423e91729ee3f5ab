"""Partitions of the raw files: Dagster's list, brought up to date with the files that are there."""

import hashlib
import json
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from tokflow.components import assets, checks, reports
from tokflow.components.history import AssetHistory, Log
from tokflow.errors import RawFileError, first_five
from tokflow.formatting import clipped, counted, ratio, redact
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.status import STATES, FileStatus, file_statuses
from tokflow.pools.pool import ignore
from tokflow.raw import RawFile, RawPartition
from tokflow.raw.hashes import HashCache, stamp_of
from tokflow.split.mixed_split import source_and_key
from tokflow.split.mixture import dataset_of
from tokflow.stage import RAW
from tokflow.store.listed_files import Stamp
from tokflow.views.picture import short_number

KEYS_AT_ONCE = 5_000
"""SQLite with a limit of 32,766 variables refuses many more in one call (dagster issue 16260)."""

SHOWN = ("summary", "problems", "status")
"""Metadata of the list of raw files that says when it is to be recorded again."""

QUICK_BYTES = 2_000_000_000
"""Bytes of unread files that are hashed in some 2 s."""

QUICK_EVENTS = 200
"""Changed or removed files that are recorded in some 3 s on an idle disk, 20 s on a busy one. New
ones take 0.2 ms each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncedFiles:
    """Changes of the raw files that were reported to Dagster: sorted partition keys."""

    added: tuple[str, ...] = ()
    """New partitions."""
    removed: tuple[str, ...] = ()
    """Partitions whose file is gone; what was built of them stays in the store."""
    changed: tuple[str, ...] = ()
    """Known partitions with another content."""

    def __str__(self) -> str:
        changes = {"added": self.added, "removed": self.removed, "changed": self.changed}
        said = [f"{len(of):,} {what} ({first_five(of)})" for what, of in changes.items() if of]
        return "raw files: " + (", ".join(said) or "no change")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileChanges:
    """Partitions that are there, against those that Dagster knows; no file was read for it."""

    graph: BuildGraph
    stamps: Mapping[str, Stamp]
    """Stamps of the raw files on this machine, by key."""
    added: tuple[str, ...]
    removed: tuple[str, ...]
    num_changed: int
    """Known partitions with a file whose checksum is not known."""
    num_unread: int
    """Files whose checksum is not known."""
    num_unread_bytes: int

    @property
    def is_quick(self) -> bool:
        """True if bringing Dagster up to date takes a few seconds at most."""
        return self.is_quickly_read and self.num_changed + len(self.removed) <= QUICK_EVENTS

    @property
    def is_quickly_read(self) -> bool:
        """True if reading what is new takes a few seconds at most."""
        return self.num_unread_bytes <= QUICK_BYTES


def look_at_sources(
    instance: dg.DagsterInstance, dataset: Dataset, graph: BuildGraph | None = None
) -> FileChanges:
    """Return what is there, without reading any content; `graph`: that of a plan.

    Raises: ConfigError, RawFileError where the files cannot be listed.
    """
    graph = graph or graph_of(dataset, offline=True)
    registered = set(instance.get_dynamic_partitions(str(assets.partition_set(dataset).name)))
    caches = {of.name: HashCache(of.folder) for of in dataset.sources or (dataset,)}
    local = {key: Path(of.url) for key, of in graph.sources.items() if of.is_local}
    stamps = {key: stamp_of(path) for key, path in local.items() if path.is_file()}
    names = {
        key: dataset_of(source_and_key(key)[0]) if dataset.sources else dataset.name
        for key in stamps
    }
    read = {source.key for of in graph.partitions.values() for source in of}
    unread = {
        key: of
        for key, of in stamps.items()
        if key in read and not caches[names[key]].find(local[key], of)
    }
    is_open = graph.limited is not None and graph.limited.is_open
    kept = graph.listed if is_open else graph.partitions  # those that may follow are no less there
    is_grouped = any(of.raw.group for of in (dataset, *dataset.sources))
    bad = [] if is_grouped else [*graph.bad_files]  # they stay partitions, which have failed
    known = [of for key, of in graph.partitions.items() if key in registered]
    return FileChanges(
        graph=graph,
        stamps=stamps,
        added=tuple(key for key in (*graph.partitions, *bad) if key not in registered),
        removed=tuple(sorted(registered - {*kept, *bad})),
        num_changed=sum(any(source.key in unread for source in of) for of in known),
        num_unread=len(unread),
        num_unread_bytes=sum(stamp.num_bytes for stamp in unread.values()),
    )


def sync_files(
    instance: dg.DagsterInstance,
    dataset: Dataset,
    changes: FileChanges | None = None,
    *,
    log: Log | None = None,
    progress: Callable[[int, int], None] = ignore,
    to_build: Collection[str] = (),
    is_listed: bool = True,
    with_status: bool = False,
) -> SyncedFiles:
    """Register new raw files as partitions, retire those that are gone, record each new content.

    Another content of a file of this machine is recorded as a materialization of `raw`, by default
    without a run, for somebody else has made it; Dagster ignores an observation of an asset that it
    can materialize. The first content makes nothing stale and is recorded when it is built, of
    the partitions `to_build` here: each event takes 5 to 12 ms. A remote file is only listed: what
    its content is shows when `raw` fetches it. The list itself is recorded as a materialization of
    `files`, so that a file which comes or goes makes the exports stale, too; `with_status`: also
    where only the status of a file is another. Without `is_listed` only the contents of `to_build`
    are read and recorded. `changes`: those that a look has found just now; `progress`: as that of
    `AssetHistory.record`, for the contents.

    Raises: ConfigError, RawFileError where the files cannot be listed; nothing is retired then.
    """
    changes = changes or look_at_sources(instance, dataset)
    graph, changed, raw_files = changes.graph, list[str](), dict[str, RawFile | None]()
    if not dataset.sources:  # whose raw files are theirs to record
        raw_files = known_files(graph, None if is_listed else to_build)
        partitions, build = known_partitions(graph, raw_files), {*to_build}
        history = AssetHistory(instance, dataset, RAW)
        known = history.versions if is_listed else partitions
        some = [key for key in sorted(partitions) if key in known or key in build]
        new = history.unrecorded({key: partitions[key].sha256 for key in some})
        history.record({key: report_raw(graph, partitions[key]) for key in new}, log, progress)
        changed = [key for key in new if key in known and key not in changes.added]
    if not (is_listed or dataset.sources):
        return SyncedFiles()
    files, added = str(assets.partition_set(dataset).name), changes.added
    for start in range(0, len(added), KEYS_AT_ONCE):
        instance.add_dynamic_partitions(files, added[start : start + KEYS_AT_ONCE])
    for key in changes.removed:
        instance.delete_dynamic_partition(files, key)
    if not dataset.sources:
        record_listing(instance, graph, raw_files, log, with_status=with_status)
    return SyncedFiles(added=added, removed=changes.removed, changed=tuple(changed))


def known_files(graph: BuildGraph, keys: Iterable[str] | None = None) -> dict[str, RawFile | None]:
    """Return every listed file, or those of some partitions, hashed if it is of this machine; None
    for one that was never fetched, or cannot be read and fails when it is built."""
    if not graph.offline:
        graph = graph_of(graph.dataset, offline=True, is_refreshed=True)
    keys = list(graph.partitions if keys is None else keys)
    graph.read_raw_files(keys)
    of_keys = {source.key for key in keys for source in graph.partitions[key]}
    raw_files: dict[str, RawFile | None] = {of: None for of in graph.sources if of in of_keys}
    for key in raw_files:
        with suppress(RawFileError):
            raw_files[key] = graph.raw_file(key)
    return raw_files


def known_partitions(
    graph: BuildGraph, raw_files: Mapping[str, RawFile | None]
) -> dict[str, RawPartition]:
    """Return the partitions of which every file is known."""
    partitions = graph.partitions.items()
    of_keys = {key: [raw_files.get(of.key) for of in sources] for key, sources in partitions}
    whole = {key: tuple(filter(None, files)) for key, files in of_keys.items() if None not in files}
    return {key: RawPartition(key, files) for key, files in whole.items()}


def record_listing(
    instance: dg.DagsterInstance,
    graph: BuildGraph,
    raw_files: Mapping[str, RawFile | None],
    log: Log | None = None,
    *,
    with_status: bool = False,
) -> bool:
    """Record the list of raw files with the status of each, unless Dagster has that list and, if
    asked for, shows that status, which the check of the files goes with. The status is no part of
    the data version, so that by it nothing becomes stale."""
    history = AssetHistory(instance, graph.dataset, assets.FILES)
    is_new = bool(history.unrecorded({"": files_version(raw_files)}))
    if is_new or with_status:
        statuses = file_statuses(make_plan(graph.dataset, graph=graph))
        rows = [asdict(of) for of in graph.listing.left_out]  # a pattern matches it
        num_bytes = sum(raw.num_bytes for raw in raw_files.values() if raw)
        summary, shown_first = status_metadata(statuses)
        page = reports.Page(
            summary={"num_files": len(raw_files), **summary, "num_bytes": num_bytes},
            shown={**shown_first, **({"left_out": reports.rows_table(rows)} if rows else {})},
            own={"dagster/row_count": len(raw_files)},
        )
        said = counted(len(raw_files), "file")
        report = reports.Report(files_version(raw_files), page.metadata, said)
        shown = history.metadata
        is_new = is_new or any(shown.get(of) != report.metadata.get(of) for of in SHOWN)
        if is_new:
            history.record({"": report}, log)
            check = checks.check_files(history.key, statuses)
            checks.log_check(log or instance.report_runless_asset_event, check)
    return is_new


def record_status(instance: dg.DagsterInstance, dataset: Dataset, log: Log | None = None) -> bool:
    """Record the list of raw files with their status where that is another than Dagster shows, and
    return whether it was; of a dataset that is no mixture."""
    graph = graph_of(dataset, offline=True)
    return record_listing(instance, graph, known_files(graph), log, with_status=True)


MAX_BUILT = 100
"""Rows of files that are as they should be: each takes 200 bytes of every event."""

MAX_REST = 100
"""Characters for what is said of further files."""


def report_raw(graph: BuildGraph, raw: RawPartition) -> reports.Report:
    """Return the report of the raw files of a partition, which are on this disk, or are fetched as
    they are read."""
    source = graph.partitions[raw.key][0]
    version, hub = None if raw.is_group else raw.files[0].version, source.hub
    details: dict[str, Any] = {"version": version} if version else {"sha256": raw.sha256}
    summary = {"num_bytes": raw.num_bytes}
    if raw.is_group:
        rows = [
            {
                "raw_file": of.key,
                "num_bytes": of.num_bytes,
                "sha256": "fetched as it is read" if of.version else of.sha256[:16],
            }
            for of in raw.files
        ]
        summary = {"num_files": len(rows), **summary}
        shown = {"files": reports.rows_table(rows)}
        page = reports.Page(summary=summary, shown=shown, details=details)
    else:
        own = {"dagster/uri": redact(source.url), "path": reports.for_shell(str(raw.paths[0]))}
        details |= {} if hub is None else {"commit": hub.commit}
        page = reports.Page(summary=summary, details=details, own=own)
    said = f"{raw.key}: {counted(raw.num_bytes, 'byte')}"
    return reports.Report(raw.sha256, page.of_file(graph), said)


def files_version(raw_files: Mapping[str, RawFile | None]) -> str:
    """Return the data version of the list of raw files."""
    versions = [[key, raw.sha256 if raw else None] for key, raw in raw_files.items()]
    return hashlib.sha256(json.dumps(versions).encode()).hexdigest()


def status_metadata(statuses: Sequence[FileStatus]) -> tuple[dict[str, Any], reports.Metadata]:
    """Return the numbers of files in each state and of what they hold, and the tables; nothing
    where no file is known."""
    if not statuses:
        return {}, {}
    ordered = sorted(statuses, key=lambda of: STATES.index(of.state))
    states = Counter(of.state for of in statuses)
    num_tokens = sum(of.num_tokens or 0 for of in statuses)
    num_bytes = sum((of.bytes_per_token or 0.0) * (of.num_tokens or 0) for of in statuses)
    summary = {
        **{f"num_{state}": states[state] for state in STATES},
        "num_documents": sum(of.num_documents or 0 for of in statuses),
        "num_tokens": num_tokens,
        "bytes_per_token": ratio(round(num_bytes), num_tokens),
    }
    problems = [of for of in ordered if of.reason]
    shown = {"problems": _problems(problems)} if problems else {}
    rows = [
        {
            "state": of.state,
            "num_tokens": of.num_tokens and short_number(of.num_tokens),
            "built": f"{of.built_at:%m-%d %H:%M}" if of.built_at else "",
            "file": of.key,
        }
        for of in ordered
    ]
    max_rows = min(reports.MAX_ROWS, len(statuses) - states["built"] + MAX_BUILT)
    return summary, {**shown, "status": reports.rows_table(rows, max_rows)}


def _problems(problems: Sequence[FileStatus]) -> dg.MarkdownMetadataValue:
    """Return why each file failed or is stale, as paragraphs."""
    said: list[str] = []
    for number, of in enumerate(problems):
        reason = textwrap.wrap(clipped(of.reason, reports.MAX_REASON), reports.WIDTH)
        head = f"**{reports.escaped(of.key)}** {of.state}"
        line = "\\\n".join([head, *map(reports.escaped, reason)])
        if sum(map(len, said)) + len(line) > reports.MAX_CHARACTERS - MAX_REST:
            said.append(f"and {len(problems) - number:,} more, as `tokflow plan` says")
            break
        said.append(line)
    return dg.MetadataValue.md("\n\n".join(said))

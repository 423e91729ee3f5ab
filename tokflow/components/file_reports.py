"""Reports of raw files and of the list of them: what failed, and what is stale, comes first."""

import hashlib
import json
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import dagster as dg

from tokflow.components.markdown import (
    MAX_CHARACTERS,
    MAX_REASON,
    MAX_ROWS,
    WIDTH,
    escaped,
    rows_table,
)
from tokflow.components.reports import Page, Report
from tokflow.pipeline.describe import ratio
from tokflow.pipeline.status import STATES, FileStatus
from tokflow.raw import LeftOut, RawFile, RawPartition, RawSource
from tokflow.shown import clipped, counted, redact

MAX_BUILT = 100
"""Rows of files that are as they should be: each takes 200 bytes of every event."""

MAX_REST = 100
"""Characters for what is said of further files."""

Shown = Mapping[str, dg.MetadataValue[Any]]


def report_raw(raw: RawPartition, sources: Sequence[RawSource]) -> Report:
    """Return the report of the raw files of a partition, which are on this disk, or are fetched as
    they are read."""
    version, hub = None if raw.is_group else raw.files[0].version, sources[0].hub
    details: dict[str, Any] = {"version": version} if version else {"sha256": raw.sha256}
    summary, shown, own = {"num_bytes": raw.num_bytes}, {}, {}
    if raw.is_group:
        summary = {"num_files": len(raw.files), **summary}
        shown = {"files": rows_table([_listed(file) for file in raw.files])}
    else:
        details |= {} if hub is None else {"commit": hub.commit}
        own = {
            "dagster/uri": redact(sources[0].url),
            "path": dg.MetadataValue.path(str(raw.paths[0])),
        }
    page = Page(summary=summary, shown=shown, details=details, own=own)
    return Report(raw.sha256, page.metadata, f"{raw.key}: {counted(raw.num_bytes, 'byte')}")


def _listed(raw: RawFile) -> dict[str, Any]:
    sha256 = raw.sha256[:16] if raw.version is None else "fetched as it is read"
    return {"raw_file": raw.key, "num_bytes": raw.num_bytes, "sha256": sha256}


def report_files(
    raw_files: Mapping[str, RawFile | None],
    left_out: Sequence[LeftOut] = (),
    statuses: Sequence[FileStatus] = (),
) -> Report:
    """Return the report of the list of raw files, None for one that has not been fetched, with the
    status of each.

    `left_out`: what is no raw file though a pattern matches it; it decides nothing.
    """
    rows = [asdict(of) for of in left_out]
    raw_bytes = {key: raw.num_bytes for key, raw in raw_files.items() if raw}
    summary, shown_first = status_metadata(statuses, raw_bytes)
    page = Page(
        summary={"num_files": len(raw_files), **summary, "num_bytes": sum(raw_bytes.values())},
        shown={**shown_first, **({"left_out": rows_table(rows)} if rows else {})},
        own={"dagster/row_count": len(raw_files)},
    )
    return Report(files_version(raw_files), page.metadata, counted(len(raw_files), "file"))


def files_version(raw_files: Mapping[str, RawFile | None]) -> str:
    """Return the data version of the list of raw files."""
    versions = [[key, raw.sha256 if raw else None] for key, raw in raw_files.items()]
    return hashlib.sha256(json.dumps(versions).encode()).hexdigest()


def status_metadata(
    statuses: Sequence[FileStatus], raw_bytes: Mapping[str, int]
) -> tuple[dict[str, Any], Shown]:
    """Return the numbers of files in each state and of what they hold, and the tables; nothing
    where no file is known. `raw_bytes`: the sizes of the raw files that are known."""
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
    rows = [_row(of, raw_bytes.get(of.key)) for of in ordered]
    max_rows = min(MAX_ROWS, len(statuses) - states["built"] + MAX_BUILT)
    return summary, {**shown, "status": rows_table(rows, max_rows)}


def _problems(problems: Sequence[FileStatus]) -> dg.MarkdownMetadataValue:
    """Return why each file failed or is stale, as paragraphs."""
    said: list[str] = []
    for number, of in enumerate(problems):
        reason = textwrap.wrap(clipped(of.reason, MAX_REASON), WIDTH)
        line = "\\\n".join([f"**{escaped(of.key)}** {of.state}", *map(escaped, reason)])
        if sum(map(len, said)) + len(line) > MAX_CHARACTERS - MAX_REST:
            said.append(f"and {len(problems) - number:,} more, as `tokflow plan` says")
            break
        said.append(line)
    return dg.MetadataValue.md("\n\n".join(said))


def _row(status: FileStatus, num_bytes: int | None) -> dict[str, Any]:
    return {
        "state": status.state,
        "file": status.key,
        "num_bytes": num_bytes,
        "num_documents": status.num_documents,
        "num_tokens": status.num_tokens,
        "bytes_per_token": status.bytes_per_token,
        "built": f"{status.built_at:%Y-%m-%d\N{NO-BREAK SPACE}%H:%M}" if status.built_at else "",
    }

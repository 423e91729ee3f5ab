"""Status of the raw files on the page of an asset: what failed, and what is stale, comes first."""

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from tokflow.components.markdown import (
    MAX_CHARACTERS,
    MAX_REASON,
    MAX_ROWS,
    WIDTH,
    escaped,
    rows_table,
    shortened_to,
)
from tokflow.pipeline.statistics import ratio
from tokflow.pipeline.status import STATES, FileStatus

MAX_BUILT = 100
"""Rows of files that are as they should be: each takes 200 bytes of every event."""

MAX_REST = 100
"""Characters for what is said of further files."""

Shown = Mapping[str, dg.MetadataValue[Any]]


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
        reason = textwrap.wrap(shortened_to(of.reason, MAX_REASON), WIDTH)
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

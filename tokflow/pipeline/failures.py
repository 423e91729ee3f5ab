"""Failures of the last builds, kept so that a plan says what went wrong with an output, and when.

    <store>/<dataset>/failures.json

A failure is known by all that could change it: the output's fingerprint and what the config makes
an error; of a raw file that could not be fetched, its addresses. So it is gone when the file or the
config changes, and when the output is made.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tokflow.errors import TokflowError
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.results import StageFailure
from tokflow.store.atomic import new_file

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


def read_failures(folder: Path) -> dict[str, PastFailure]:
    """Return the failures in the folder of a dataset by their keys, none where nothing tells."""
    with suppress(OSError, msgspec.MsgspecError):
        data = (folder / FAILURES_NAME).read_bytes()
        return msgspec.json.decode(data, type=dict[str, PastFailure])
    return {}


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
    known = read_failures(graph.folder)
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
        if kept == known:
            return
        path = graph.folder / FAILURES_NAME
        newest = sorted(kept.items(), key=lambda item: item[1].time)[-MAX_FAILURES:]
        if not newest:
            path.unlink(missing_ok=True)
            return
        with new_file(path) as temporary:
            said = {key: asdict(of) for key, of in newest}
            temporary.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


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

"""Status of each raw file of a dataset: failed, stale, new or built, and what its tokens are."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, get_args

from tokflow.errors import TokflowError
from tokflow.pipeline.describe import describe
from tokflow.pipeline.plan import Plan, PlannedOutput
from tokflow.store.manifest import MANIFEST_NAME
from tokflow.store.stored_outputs import newest_output

State = Literal["failed", "bad", "stale", "new", "built"]

STATES: tuple[State, ...] = get_args(State)
"""States, the ones that need attention first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileStatus:
    """State of one partition of the raw files, with the size of its tokens."""

    key: str
    """The partition key; of a mixture `<source>/<key>`."""
    state: State
    """failed: its raw file cannot be read, or its last build failed, or that of the tokenizer that
    it waits for; bad: it cannot be read, and `raw.on_bad_file: skip` leaves it out; stale: what was
    built of it is not what a build would make now; new: it was never built; built: a build would
    leave it."""
    reason: str = ""
    """The message of the failure, why it cannot be read, or why it is stale; else empty."""
    num_documents: int | None = None
    """Documents of its newest tokens, as are all numbers below; None where it has none."""
    num_tokens: int | None = None
    bytes_per_token: float | None = None
    """Bytes of UTF-8 of its text by its tokens; None, too, of tokens that are none."""
    built_at: datetime | None = None
    """Time of the manifest of its tokens, in UTC."""


def file_statuses(plan: Plan) -> list[FileStatus]:
    """Return the status of every file that a plan is about, in the order of their keys.

    The plan says what is missing, stale and bad, and what failed before. The manifest of the
    tokens of each file is read, no token, and no raw file.
    """
    planned: dict[str, list[PlannedOutput]] = defaultdict(list)
    for of in plan.planned:
        if of.output.step.is_of_file:
            having = of.output.graph.dataset.name
            takes = [name for name, each in plan.graph.takes.items() if each.dataset.name == having]
            for prefix in [f"{name}/" for name in takes] or [""]:
                planned[prefix + of.name].append(of)
    # A mixture's plan names the raw files that cannot be read as their source does.
    prefixes = [f"{name}/" for name in plan.graph.takes] or [""]
    bad = {
        prefix + of.name: str(of.explained)
        for of in plan.bad
        for prefix in prefixes
        if not planned.get(prefix + of.name)
    }
    # A failure that every file waits for: mostly of the tokenizer.
    of_all = [str(of.explained) for of in plan.bad if not of.is_raw]
    planned_all = (of for of in plan.planned if of.failure and of.output.step.decides_all)
    of_all += [of.failure.message for of in planned_all if of.failure]
    left_out = plan.graph.bad_files.items()
    found = [FileStatus(key=key, state="bad", reason=reason) for key, reason in left_out]
    found += [
        _status(plan, key, planned[key], bad.get(key) or next(iter(of_all), None))
        for key in plan.graph.partitions
        if planned[key] or key in bad or of_all
    ]
    return sorted(found, key=lambda of: of.key)


def _status(
    plan: Plan, key: str, planned: Sequence[PlannedOutput], failure: str | None
) -> FileStatus:
    missing = [of for of in planned if not of.is_made]
    failure = failure or next((of.failure.message for of in missing if of.failure), None)
    now = next((of.folder for of in planned if of.output.step.has_engine and of.is_made), None)
    tokens, made = plan.graph.tokens(key), None
    with suppress(TokflowError, OSError):  # those of now or, where there are none, the last
        store = tokens.graph.store
        made = store.read(now) if now else newest_output(store, tokens.place)
    state: State = "new" if missing else "built"
    reason = ""
    if failure is not None:
        state, reason = "failed", failure
    elif missing and made is not None:
        state, reason = "stale", f"{missing[0].stage}: {missing[0].reason}"
    status = FileStatus(key=key, state=state, reason=reason)
    if made is None:
        return status
    numbers = describe(made.manifest).whole
    return replace(
        status,
        num_documents=numbers["num_documents"],
        num_tokens=numbers["num_tokens"],
        bytes_per_token=numbers["bytes_per_token"] or None,
        built_at=datetime.fromtimestamp((made.folder / MANIFEST_NAME).stat().st_mtime, UTC),
    )

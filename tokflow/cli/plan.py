"""`tokflow plan` and `tokflow rejects`: the outputs that a run would build, and why; and the bad
documents that builds set aside. Nothing is built."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from tokflow.cli.options import (
    Configs,
    Json,
    Names,
    Partitions,
    ProjectFolder,
    StoreName,
    Words,
    select,
)
from tokflow.cli.terminal import (
    described_left_out,
    exit_status,
    print_error,
    print_json,
    print_notices,
    print_rows,
    print_styled,
    print_table,
)
from tokflow.errors import ConfigError, TokflowError, shortened
from tokflow.exports.config import in_one_line
from tokflow.formatting import counted, duration, printable, size
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.gc import bytes_to_write, free_bytes, likely_bytes
from tokflow.pipeline.mixture import mixture_rows
from tokflow.pipeline.plan import Plan, PlannedOutput, make_plan, proposed_group
from tokflow.tokens.shard_files import REJECTS_NAME, rejects_in

ROWS_SHOWN = 40
"""Lines of a plan on a terminal; the JSON has all."""

FAILURES_SHOWN = 5


def main(
    names: Names = None,
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    partitions: Partitions = None,
    json: Json = False,
) -> int:
    """Print the plan of each dataset; return the exit status."""
    broken: dict[str, ConfigError] = {}
    datasets = select(names, configs, store, is_one=bool(partitions), broken=broken)
    errors: list[Exception] = list(broken.values())
    found: list[Plan] = []
    for dataset in datasets:
        try:
            found.append(make_plan(dataset, partitions=partitions))
        except TokflowError as error:
            if len(datasets) == 1:
                raise
            errors.append(error)
            print_error(str(error), error)
    plans = _once(found)
    if json:
        print_json({"datasets": [_document(plan) for plan in plans]})
    else:
        for plan in plans:
            _print(plan)
    return exit_status([*errors, *(bad.error for plan in plans for bad in plan.bad)])


def _once(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans with each output listed once: an output of a mixture's source in the
    source's own plan or, without one, in the plan of the first mixture."""
    placed = [*enumerate(plans)]
    first = {_place(of): number for number, plan in reversed(placed) for of in plan.planned}
    having = first | {_place(of): number for number, plan in placed for of in plan.own}
    return [
        replace(plan, planned=tuple(of for of in plan.planned if having[_place(of)] == number))
        for number, plan in placed
    ]


def _place(of: PlannedOutput) -> str:
    return f"{of.output.place}/{of.packing}"


def _document(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain JSON."""
    return {
        "dataset": plan.graph.dataset.name,
        "is_up_to_date": plan.is_up_to_date,
        "num_outputs": len(plan.planned),
        "num_missing": len(plan.missing),
        "num_files": plan.num_files,
        "more_may_follow": plan.is_open,
        "num_remote_files": plan.num_remote,
        "proposed_group": (of := proposed_group(plan.graph)) and of.group,
        "left_out": plan.left_out,
        "library_changes": plan.library_changes(),
        "notices": plan.totals.notices(),
        "num_bytes": plan.num_bytes,
        "estimated_seconds": round(plan.estimated_seconds, 2),
        "bytes_to_write": bytes_to_write(plan),
        "free_bytes": free_bytes(plan.graph.dataset.store),
        **({"mixture": rows} if (rows := mixture_rows(plan.of_mixture)) else {}),
        "missing": [_planned(of) for of in plan.missing],
        "exports": [of.plain for of in plan.graph.dataset.exports],
        "bad": [bad.as_document() for bad in plan.bad],
    }


def _planned(of: PlannedOutput) -> dict[str, Any]:
    names = ("stage", "name", "cause", "details", "fingerprint", "folder", "num_bytes")
    fields = {name: getattr(of, name) for name in (*names, "estimated_seconds")}
    fields["dataset"] = of.output.graph.dataset.name
    fields |= {"packing": of.packing} if of.packing else {}
    failure = of.failure and {"message": of.failure.message, "time": of.failure.time}
    return {**fields, "failure": failure}


def _print(plan: Plan) -> None:
    num_made = len(plan.planned) - len(plan.missing)
    if plan.is_up_to_date:
        outputs = f"{counted(num_made, 'output')} of {counted(plan.num_files, 'file')}"
        print(f"{plan.graph.dataset.name}: nothing to build: {outputs} are up to date")
    elif plan.missing:
        print_styled(
            (plan.graph.dataset.name, "bold"),
            f": {counted(len(plan.missing), 'output')} to build, "
            f"{size(plan.num_bytes)} to tokenize, about {duration(plan.estimated_seconds)}; "
            f"{counted(num_made, 'output')} up to date",
        )
        _print_missing(plan)
    if proposed := proposed_group(plan.graph):
        print(proposed)
    if rows := mixture_rows(plan.of_mixture):
        print_rows(rows)
    if plan.is_open:
        print("more files follow, one after another, until documents.limit is reached")
    if plan.num_remote:
        print(
            f"{counted(plan.num_remote, 'file')} not on this disk: a run asks whether they changed"
        )
    if plan.num_elsewhere:
        print(f"exports wait for {counted(plan.num_elsewhere, 'other file')} to be built")
    if plan.left_out:
        print(described_left_out(plan.left_out))
    for change in plan.library_changes():
        print(change)
    print_notices(plan.totals.notices())
    for note in filter(None, (what_select_moves(plan.graph.dataset), what_is_rewritten(plan))):
        print(f"note: {note}")
    for bad in plan.bad:
        print_error(str(bad.explained), bad.error)


def _print_missing(plan: Plan) -> None:
    """Print a table of the outputs to be made, those of a stage in one row that are made for the
    same reason, the room that they take, and their last failures."""
    dataset = plan.graph.dataset
    together: dict[tuple[str, ...], list[PlannedOutput]] = {}
    for of in plan.missing:
        key = of.output.graph.dataset.name, of.stage, of.reason, of.packing
        together.setdefault(key, []).append(of)
    rows = []
    for (having, stage, reason, _), outputs in together.items():
        source = "" if having == dataset.name else f"{having}: "
        more = f" and {len(outputs) - 1:,} more" if len(outputs) > 1 else ""
        name = f"{source}{outputs[0].output.label}{more}"
        num_bytes = size(sum(of.num_bytes for of in outputs))
        to_write = size(num) if (num := likely_bytes(outputs)) else ""
        seconds = duration(sum(of.estimated_seconds for of in outputs))
        rows.append((stage, name, num_bytes, to_write, seconds, reason))
    columns = ("stage", "name", "raw bytes", "to write", "about", "why")
    print_table(columns, rows, max_rows=ROWS_SHOWN)
    if (num := likely_bytes(plan.missing)) and (free := free_bytes(dataset.store)) is not None:
        print(f"tokens and exports: about {size(num)} to write, {size(free)} free")
    for config in dataset.exports:
        if len(config.plain) > 1:  # with what a preset stands for
            print(printable(f"{config.name}: {in_one_line(config.plain)}"))
    failures = []
    for failure in [of.failure for of in plan.missing if of.failure]:
        when = datetime.fromisoformat(failure.time).astimezone().strftime("%Y-%m-%d %H:%M")
        failures.append(f"{failure.title} failed on {when}: {failure.message}")
    for line in shortened(failures, FAILURES_SHOWN):
        print_styled(line)


def what_select_moves(dataset: Dataset) -> str | None:
    """Return what another `select` does to the parts; None where no document changes its part."""
    form = dataset.split.form
    is_counted = len(dataset.split.parts) > 1 and form in ("characters", "documents", "fraction")
    if not (dataset.select.expression.strip() and is_counted):
        return None
    return (
        f"another `select` moves documents between the parts, which count by {form} what is kept; "
        "with hash_fraction each stays in its part"
    )


def what_is_rewritten(plan: Plan) -> str | None:
    """Return which exports are written as a whole whatever changes; None where none is, or nothing
    is to be built."""
    order = plan.graph.dataset.shuffle.of_export
    names = [
        of.name
        for of in plan.graph.dataset.exports
        if order.documents is not None or (order.sequences is not None and of.layout.is_packed)
    ]
    if not (names and plan.missing):
        return None
    return f"`shuffle` mixes all files, so that a change of one writes all of {', '.join(names)}"


def rejects(
    names: Names = None,
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    partitions: Partitions = None,
    json: Json = False,
) -> None:
    """Print a line for each reject of the datasets."""
    datasets = select(names, configs, store, is_one=bool(partitions))
    found = {of.name: _rejects(of, partitions) for of in datasets}
    if json:
        print_json({"datasets": [{"dataset": of, "rejects": [*found[of]]} for of in found]})
        return
    for name, set_aside in found.items():
        num = 0
        for num, reject in enumerate(set_aside, start=1):  # noqa: B007  # counted after the loop
            of_line = reject["line"] is not None
            place = f"line {reject['line']:,}" if of_line else f"row {reject['row']:,}"
            print(printable(f"{reject['raw_file']}, {place}: {reject['reason']}"))
        print(f"{name}: {counted(num, 'reject')}")


def _rejects(dataset: Dataset, partitions: Words) -> Iterator[dict[str, Any]]:
    """Yield the rejects of existing token shards, in the order of their files."""
    for of in make_plan(dataset, partitions=partitions).planned:
        if of.output.step.has_engine and of.is_made and of.output.counts["num_rejects"]:
            yield from rejects_in(of.output.open().file(REJECTS_NAME).read_bytes(), of.name)

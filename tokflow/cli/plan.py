"""`tokflow plan`: what a run would build, and why."""

from collections.abc import Sequence
from typing import Any

from tokflow.build.plan import Plan, PlannedOutput, make_plan
from tokflow.cli.left_out import document_of_left_out, line_of_left_out
from tokflow.cli.output import DONE, counted, print_error, print_json, print_table, size, styled
from tokflow.cli.selection import Selected

ROWS_SHOWN = 40
"""Lines of a plan on the screen; the JSON has all."""


def print_plans(
    selected: Sequence[Selected], *, partitions: Sequence[str] | None, as_json: bool
) -> int:
    """Print the plan of each dataset; return the exit status."""
    plans = [make_plan(of.dataset, partitions=partitions) for of in selected]
    if as_json:
        print_json({"datasets": [as_document(plan) for plan in plans]})
    else:
        for plan in plans:
            _print(plan)
    return DONE


def as_document(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain JSON."""
    return {
        "dataset": plan.dataset.name,
        "is_up_to_date": plan.is_up_to_date,
        "num_outputs": len(plan.planned),
        "num_missing": len(plan.missing),
        "num_files": plan.num_files,
        "num_remote_files": plan.num_remote,
        "left_out": document_of_left_out(plan.left_out),
        "num_bytes": plan.num_bytes,
        "estimated_seconds": round(plan.seconds, 2),
        "missing": [
            {
                "stage": planned.stage,
                "name": planned.name,
                "cause": planned.cause,
                "details": list(planned.details),
                "fingerprint": planned.fingerprint,
                "num_bytes": planned.num_bytes,
                "estimated_seconds": round(planned.seconds, 2),
            }
            for planned in plan.missing
        ],
        "bad": [
            {"stage": bad.stage, "name": bad.name, "error": bad.explained.fields()}
            for bad in plan.bad
        ],
    }


def _print(plan: Plan) -> None:
    name = plan.dataset.name
    missing = plan.missing
    num_made = len(plan.planned) - len(missing)
    outputs = f"{counted(num_made, 'output')} of {counted(plan.num_files, 'file')}"
    if plan.is_up_to_date:
        print(f"{name}: nothing to build: {outputs} are up to date")
    elif missing:
        print(
            f"{styled(name, 'bold')}: {counted(len(missing), 'output')} to build, "
            f"{size(plan.num_bytes)} to tokenize, about {_duration(plan.seconds)}; "
            f"{counted(num_made, 'output')} up to date"
        )
        print_table(
            ("stage", "name", "raw bytes", "about", "why"),
            [_row(planned) for planned in missing[:ROWS_SHOWN]],
        )
        if len(missing) > ROWS_SHOWN:
            print(f"... and {len(missing) - ROWS_SHOWN:,} more; --json lists them all")
    if plan.num_remote:
        print(f"{counted(plan.num_remote, 'file')} elsewhere: a run asks whether they changed")
    if plan.num_elsewhere:
        print(f"exports wait for {counted(plan.num_elsewhere, 'other file')} to be built")
    if plan.left_out:
        print(line_of_left_out(plan.left_out))
    for bad in plan.bad:
        print_error(str(bad.explained), bad.error)


def _row(planned: PlannedOutput) -> tuple[str, ...]:
    return (
        planned.stage,
        planned.name,
        size(planned.num_bytes),
        _duration(planned.seconds),
        planned.reason,
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:,.1f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"

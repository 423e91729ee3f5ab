"""`tokflow run`: look what is missing, build it, say what came of it.

Where nothing is missing neither Dagster nor an engine is imported.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from tokflow.build.pipeline import build_dataset
from tokflow.build.plan import Plan, PlannedOutput, make_plan
from tokflow.build.results import BuildResult, StageResult
from tokflow.cli import STARTED
from tokflow.cli.documents import document_of_build, document_of_plan
from tokflow.cli.left_out import line_of_left_out
from tokflow.cli.lines import Errors, Lines
from tokflow.cli.output import DONE, FAILED, counted, print_error, print_json, size
from tokflow.cli.selection import Selected
from tokflow.errors import explained
from tokflow.store.atomic import point_latest_to

if TYPE_CHECKING:
    from tokflow.cli.recorder import Recorder


def run_datasets(
    selected: Sequence[Selected], *, partitions: Sequence[str] | None, as_json: bool
) -> int:
    """Build the datasets one after the other; one that fails does not stop the next."""
    documents = []
    code = DONE
    for one in selected:
        try:
            document, is_well = _run(one, partitions, as_json=as_json)
        except Exception as error:
            if len(selected) == 1:
                raise
            problem = explained(error, where=one.dataset.name)
            print_error(str(problem), error)
            document, is_well = {"dataset": one.dataset.name, "error": problem.fields()}, False
        documents.append(document)
        code = code if is_well else FAILED
    if as_json:
        print_json({"datasets": documents})
    return code


def _run(
    selected: Selected, partitions: Sequence[str] | None, *, as_json: bool
) -> tuple[dict[str, Any], bool]:
    """Return what is to be said of a dataset in JSON, and whether all went well."""
    hashing = None if as_json else _show_hashing
    plan = make_plan(selected.dataset, partitions=partitions, progress=hashing)
    if plan.is_up_to_date and not plan.num_remote:
        if not as_json:
            _say_nothing_to_do(plan)
        problems = _record(selected, _publish(plan), is_partial=partitions is not None)
        return document_of_plan(plan, problems), not problems
    with _recorder(selected) as recorder:
        built = _build(selected, plan, partitions, as_json=as_json)
        if not as_json:
            _print_built(selected, plan, built)
        is_partial = bool(partitions is not None or built.failed)
        problems = _record(selected, built.made, is_partial=is_partial, recorder=recorder)
    return document_of_build(selected.dataset, built, problems), not (built.failed or problems)


def _recorder(selected: Selected) -> "AbstractContextManager[Recorder | None]":
    if not selected.is_declared:
        return nullcontext()
    from tokflow.cli.recorder import Recorder

    return Recorder(selected.dataset.name)


def _print_built(selected: Selected, plan: Plan, built: BuildResult) -> None:
    from tokflow.cli.closing import print_closing

    if built.num_new or built.failed:
        # Where no terminal shows bars, a line of each stage has said it.
        print_closing(selected.dataset, plan, built, with_rows=sys.stdout.isatty())
    else:
        _say_nothing_to_do(plan)


def _build(
    selected: Selected, plan: Plan, partitions: Sequence[str] | None, *, as_json: bool
) -> BuildResult:
    if as_json:
        return build_dataset(selected.dataset, partitions=partitions, reporter=Errors())
    if sys.stdout.isatty():
        from tokflow.cli.progress import Bars

        with Bars(plan) as bars:
            return build_dataset(selected.dataset, partitions=partitions, reporter=bars)
    return build_dataset(selected.dataset, partitions=partitions, reporter=Lines())


def _publish(plan: Plan) -> Sequence[PlannedOutput]:
    """Let `latest` lead to the exports of this config again, as after going back to an earlier
    one; return the outputs, which are all there."""
    for planned in plan.planned:
        if planned.stage == "export" and planned.folder is not None:
            point_latest_to(planned.folder)
    return plan.planned


def _say_nothing_to_do(plan: Plan) -> None:
    outputs = counted(len(plan.planned), "output")
    files = counted(plan.num_files, "file")
    verb = "is" if len(plan.planned) == 1 else "are"
    seconds = time.perf_counter() - STARTED
    print(
        f"{plan.dataset.name}: nothing to do: {outputs} of {files} {verb} up to date "
        f"({seconds:.1f} s)",
        flush=True,
    )
    if plan.left_out:
        print(line_of_left_out(plan.left_out), flush=True)


def _show_hashing(done: int, total: int | None) -> None:
    """Say on a terminal how far the checksums of new raw files are, if it takes its time."""
    if total and total > 500_000_000 and sys.stderr.isatty():
        end = "\n" if done >= total else ""
        text = f"\rreading raw files: {size(done)} of {size(total)}   "
        print(text, end=end, file=sys.stderr, flush=True)


def _record(
    selected: Selected,
    outputs: Sequence[StageResult] | Sequence[PlannedOutput],
    *,
    is_partial: bool,
    recorder: "Recorder | None" = None,
) -> list[str]:
    """Tell Dagster of the raw files and of what there is, unless it has been told; return what
    its asset checks found wrong."""
    if not selected.is_declared:
        return []
    from tokflow.cli.recording import record

    fingerprints: dict[str, str] = {}
    keys: list[str] = []
    for one in outputs:
        output = one.output if isinstance(one, StageResult) else one
        fingerprints[f"{output.stage}/{output.name}"] = str(output.fingerprint)
        if output.stage == "sequences":
            keys.append(output.name)
    is_new = any(isinstance(one, StageResult) and one.is_new for one in outputs)
    problems = record(
        selected.dataset,
        keys,
        fingerprints,
        is_partial=is_partial,
        is_new=is_new,
        recorder=recorder,
    )
    for problem in problems:
        print_error(problem)
    return problems

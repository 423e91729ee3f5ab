"""`tokflow run`: build what is missing or has changed, and print a summary.

A declared dataset is built by a run of the Dagster job in this process. If nothing is missing,
neither Dagster nor an engine is imported, nor what builds, reports and records.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from tokflow.cli import STARTED
from tokflow.cli.options import (
    Configs,
    Jobs,
    Json,
    Names,
    Partitions,
    ProjectFolder,
    StoreName,
    Words,
    select,
)
from tokflow.cli.terminal import (
    FAILED,
    described_dropped,
    described_left_out,
    exit_status,
    print_error,
    print_json,
    print_notices,
)
from tokflow.errors import ConfigError, explained
from tokflow.formatting import counted, duration, size
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.output import Output
from tokflow.pipeline.plan import Plan, make_plan, proposed_group
from tokflow.pipeline.raw_files import FileShare, check_first_columns
from tokflow.pipeline.results import BuildResult, Reporter
from tokflow.pools import SMALL_BYTES, Workers, get_ready, is_local, num_jobs
from tokflow.store.versions import loaded_versions

Force = Annotated[
    bool,
    typer.Option("--force", help="Begin also where the disk has plainly too little room."),
]

Recheck = Annotated[
    bool,
    typer.Option(
        "--recheck",
        help="Compute all checks again. A check that passed is remembered in the store, and "
        "skipped while its files are unchanged. With a store at a URL, first list its objects, "
        "and make again each output that lacks one. `tokflow verify` reads all bytes.",
    ),
]

ShardText = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Only share I, from 1, of N shares of the raw files, without exports, for batch "
        "systems. Run again without --shard when all shares are done.",
    ),
]

PoolName = Annotated[
    str | None,
    typer.Option(
        "--pool",
        metavar="local|ray",
        help="Where tasks run: processes of this machine (the default, or TOKFLOW_POOL), or the "
        "Ray cluster that RAY_ADDRESS names or this machine is part of.",
    ),
]


def main(
    names: Names = None,
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    partitions: Partitions = None,
    jobs: Jobs = None,
    pool: PoolName = None,
    shard: ShardText = None,
    recheck: Recheck = False,
    force: Force = False,
    json: Json = False,
) -> int:
    """Build the datasets one after the other; one that fails does not stop the next."""
    num_jobs(jobs)  # or an error, before anything is done
    is_local(pool)
    asked = _Asked(
        partitions=partitions,
        workers={"jobs": jobs, "pool": pool},
        in_dagster=not configs and store is None,
        recheck=recheck,
        force=force,
        json=json,
    )
    run = _run
    if shard is not None:
        share = FileShare.read(shard)
        run = partial(_run_share, share=share)
        if beside := "--partition" if partitions else "--recheck" if recheck else None:
            raise ConfigError(
                where="--shard",
                expected="a share of all raw files, which are checked when all shares are done",
                found=f"{share} and {beside}",
                remedy="leave one out; `tokflow verify` checks any outputs",
            )
    broken: dict[str, ConfigError] = {}
    datasets = select(names, configs, store, is_one=bool(partitions), broken=broken)
    documents: list[dict[str, Any]]
    documents = [{"dataset": name, "error": error.fields()} for name, error in broken.items()]
    errors: list[Exception] = list(broken.values())
    for dataset in datasets:
        try:
            document, failed = run(dataset, asked)
            documents.append(document)
            errors += failed
        except Exception as error:
            if len(datasets) == 1:
                raise
            errors.append(error)
            problem = explained(error, where=dataset.name)
            print_error(str(problem), error)
            documents.append({"dataset": dataset.name, "error": problem.fields()})
    if json:
        print_json({"datasets": documents})
    return FAILED if any(of.get("problems") for of in documents) else exit_status(errors)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """The options of a run."""

    partitions: Words
    workers: Workers
    in_dagster: bool
    """False with --config or --store, which Dagster does not know of."""
    recheck: bool
    force: bool
    json: bool


def _run_share(
    dataset: Dataset, asked: _Asked, *, share: FileShare
) -> tuple[dict[str, Any], list[Exception]]:
    """Build a share of a dataset, without a plan of the whole."""
    from tokflow.cli.progress import Errors, printed_lines
    from tokflow.pipeline.run import build_dataset

    graph = graph_of(dataset)
    check_first_columns(graph.partitions, graph.documents)
    errors = Errors()
    reporter = errors if asked.json else printed_lines(dataset.name, errors)
    try:
        built = build_dataset(dataset, graph=graph, share=share, reporter=reporter, **asked.workers)
    finally:
        errors.print_all()
    if not asked.json:
        files = f"{counted(built.num_files, 'file')} of {len(graph.sources):,}"
        outputs = counted(built.num_new, "new output")
        libraries = ", ".join(f"{name} {of}" for name, of in loaded_versions().items())
        print(
            f"{dataset.name}: shard {share}: {files}, {outputs}, {duration(built.seconds)}, with "
            f"{libraries}; "
            "`tokflow run` without --shard makes the rest when all shards are done",
            flush=True,
        )
    return _document(dataset, built), [failed.error for failed in built.failed]


def _run(dataset: Dataset, asked: _Asked) -> tuple[dict[str, Any], list[Exception]]:
    """Build a dataset; return its JSON summary and the errors of failed outputs."""
    look = partial(
        make_plan,
        dataset,
        partitions=asked.partitions,
        progress=partial(_while_hashing, asked),
        reads_once=not asked.in_dagster,
    )
    plan = look()
    if asked.recheck:
        made = [of.output.folder for of in plan.planned if of.is_made]
        if dataset.store.note_lacking(made):
            plan = look()
    is_partial = asked.partitions is not None
    is_done = plan.is_up_to_date and not plan.num_remote and not asked.recheck
    if is_done and asked.in_dagster and not is_partial:
        from tokflow.cli.recorded import is_recorded

        is_done = is_recorded(dataset, [of.output for of in plan.own])
    if is_done:
        from tokflow.pipeline.gc import drop_tokens
        from tokflow.record.export_card import write_cards

        num_dropped = drop_tokens(plan.graph)
        for planned in plan.planned:
            if planned.output.step.has_latest and planned.folder is not None:
                # As after going back to an earlier config.
                dataset.store.point_latest(planned.folder)
        num_cards = write_cards(dataset, [of.output for of in plan.planned])
        if not asked.json:
            if num_dropped:
                print(f"{dataset.name}: {described_dropped(num_dropped)}", flush=True)
            if num_cards:
                print(
                    f"{dataset.name}: cards of {counted(num_cards, 'export')} written", flush=True
                )
            _say_nothing_to_do(plan)
        return _document(dataset, plan) if asked.json else {}, []
    if not asked.force:
        from tokflow.pipeline.gc import check_room

        check_room(plan)
    built, problems = _build(plan, asked)
    if asked.in_dagster:
        from tokflow.cli.recorded import RECORDED_NAME, note_recorded

        if built.failed or problems:  # the next run builds and checks again
            (dataset.folder / RECORDED_NAME).unlink(missing_ok=True)
        elif not is_partial:
            note_recorded(dataset, [made.output for made in built.made])
    document = _document(dataset, built) | {"problems": problems}
    return document, [failed.error for failed in built.failed]


def _build(plan: Plan, asked: _Asked) -> tuple[BuildResult, list[str]]:
    """Build and print progress and summary, errors last; return the problems that checks found,
    too."""
    from tokflow.cli.progress import Bars, Errors, printed_lines

    dataset = plan.graph.dataset
    if not asked.json and (proposed := proposed_group(plan.graph)):
        print(f"{dataset.name}: {proposed}", flush=True)
    errors = Bars(plan) if sys.stdout.isatty() and not asked.json else Errors()
    problems: list[str] = []
    lacking: Sequence[str] = ()
    try:
        with ExitStack() as stack:
            if asked.in_dagster:
                from tokflow.cli.recorded import build_recorded, own_streams

                stack.enter_context(own_streams())
            reporter: Reporter = errors
            if isinstance(errors, Bars):
                stack.enter_context(errors)
            elif not asked.json:
                reporter = printed_lines(dataset.name, errors)
            what: dict[str, Any] = {"partitions": asked.partitions, "reporter": reporter}
            if asked.in_dagster:
                how = {"recheck": asked.recheck, "workers": asked.workers}
                recorded = build_recorded(plan.graph, **how, **what)
                built, problems = recorded.built, list(recorded.problems)
                lacking = recorded.not_computed
            else:
                from tokflow.pipeline.run import build_dataset
                from tokflow.record.export_card import write_cards

                built = build_dataset(dataset, graph=plan.graph, **what, **asked.workers)
                write_cards(dataset, [of.output for of in built.made])
                if asked.recheck:  # which a run of Dagster does by itself
                    from tokflow.audit.checks import recheck

                    graph = graph_of(dataset)
                    problems, lacking = recheck(graph, graph.selected_keys(asked.partitions))
        if not asked.json:
            _say_what_came(plan, built, problems, lacking, asked)
    finally:
        errors.print_all()
        for problem in problems:
            print_error(problem)
    return built, problems


def _say_what_came(
    plan: Plan,
    built: BuildResult,
    problems: Sequence[str],
    not_computed: Sequence[str],
    asked: _Asked,
) -> None:
    name = plan.graph.dataset.name
    if built.num_new or built.failed:
        from tokflow.cli.closing_summary import print_summary

        if built.num_new:  # as where another machine made a share of the files
            for change in plan.library_changes(of_engines=True):
                print(f"{name}: tokens of two versions of a library: {change}")
        print_summary(plan, built, is_declared=asked.in_dagster)
    elif not problems:
        _say_nothing_to_do(plan)
    if asked.recheck and not problems:
        all_but = "all checks but those of dropped tokens" if not_computed else "all checks"
        print(f"{name}: {all_but} were computed again and found nothing wrong")
        if not_computed:
            print(f"{name}: not computed: {', '.join(not_computed)}")


def _say_nothing_to_do(plan: Plan) -> None:
    outputs, files = counted(len(plan.planned), "output"), counted(plan.num_files, "file")
    verb = "is" if len(plan.planned) == 1 else "are"
    print(
        f"{plan.graph.dataset.name}: nothing to do: {outputs} of {files} {verb} up to date "
        f"({duration(time.perf_counter() - STARTED)})",
        flush=True,
    )
    if plan.left_out:
        print(described_left_out(plan.left_out), flush=True)
    print_notices(plan.totals.notices())


def _while_hashing(asked: _Asked, done: int, total: int | None) -> None:
    """Start workers early for new raw files, and print the progress of hashing large ones."""
    if total and total > SMALL_BYTES and is_local(asked.workers.get("pool")):
        get_ready(num_jobs(asked.workers.get("jobs")))
    if asked.json:
        return
    if total and total > 500_000_000 and sys.stderr.isatty():
        end = "\n" if done >= total else ""
        text = f"\rreading raw files: {size(done)} of {size(total)}   "
        print(text, end=end, file=sys.stderr, flush=True)


def _document(dataset: Dataset, found: Plan | BuildResult) -> dict[str, Any]:
    """Return the JSON summary of a dataset that was up to date, or of its build."""
    document = {"dataset": dataset.name, "num_files": found.num_files, "left_out": found.left_out}
    if isinstance(found, Plan):
        document |= {"notices": found.totals.notices(), "failed": [], "problems": []}
        outputs = [_output(planned.output, is_new=False) for planned in found.planned]
        return {**document, "num_new": 0, "seconds": 0.0, "outputs": outputs}
    from tokflow.pipeline.describe import statistics_of

    outputs = [
        _output(made.output, is_new=made.is_new)
        | {"counts": dict(made.manifest.counts), "run": made.run}
        for made in found.made
    ]
    return {
        **document,
        "notices": found.notices,
        "failed": [failed.as_document() for failed in found.failed],
        "problems": [],
        "num_new": found.num_new,
        "seconds": round(found.seconds, 3),
        "stage_seconds": {of: round(num, 3) for of, num in found.stage_seconds.items()},
        "peak_bytes": found.peak_bytes,
        "dropped_bytes": found.dropped_bytes,
        "outputs": outputs,
        "statistics": statistics_of(found),
    }


def _output(output: Output, *, is_new: bool) -> dict[str, Any]:
    return {
        "stage": output.stage,
        "name": output.name,
        **({"packing": output.packing} if output.packing else {}),
        "fingerprint": output.fingerprint,
        "folder": str(output.folder),
        "is_new": is_new,
    }

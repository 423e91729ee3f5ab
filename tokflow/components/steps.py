"""Bodies of the assets: each calls one function of `pipeline` and reports what it made."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import dagster as dg

from tokflow.build.dataset import Dataset
from tokflow.build.graph import BuildGraph
from tokflow.build.pipeline import make_export, make_stage, make_tokenizer
from tokflow.build.results import StageResult
from tokflow.components.checks import check_results
from tokflow.components.dagster_names import FILE_STAGES
from tokflow.components.file_partitions import known_files
from tokflow.components.history import AssetHistory
from tokflow.components.reports import Report, report, report_files, report_raw
from tokflow.components.workers import RESOURCE
from tokflow.errors import TokflowError, first_five, message_of, shortened
from tokflow.pools.pool import Advance, Pool, open_pool

Results = Iterator[dg.MaterializeResult[Any]]
Context: TypeAlias = dg.OpExecutionContext | dg.AssetExecutionContext
Body = Callable[[dg.AssetExecutionContext], Results]

LOG_SECONDS = 5.0
"""A line of the log costs some 10 ms and a row of the database."""

FETCH_AGAIN = dg.RetryPolicy(
    max_retries=2, delay=10, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
)
"""On top of the tries of each download: a server may be away for longer. Not the policy of a step,
since with one Dagster begins a step again that a user has terminated."""

MAX_SHOWN = 50
"""Files that a failure lists."""


def make_body(dataset: Dataset, stage: Any, name: str = "") -> Body:
    """Return what an asset does: make its outputs, report and check them.

    Those are the partitions of the run, one key, a range or all, or the one output of the asset. A
    file that cannot be built stops no other: the step fails at the end, and names it.
    """

    def body(context: dg.AssetExecutionContext) -> Results:
        graph = BuildGraph(dataset)
        keys = sorted(context.partition_keys) if stage in FILE_STAGES else [name or stage]
        with open_pool(getattr(context.resources, RESOURCE).jobs) as pool:
            reports, errors = _make_all(context, graph, stage, keys, pool)
            if graph.has_new_verdict:  # those that were made before it are to be made again
                reports, errors = _make_all(context, graph, stage, keys, pool)
        if not errors:
            report = reports[keys[0]] if len(keys) == 1 else _joined(reports)
            # Dagster 1.13 gives all partitions of a run the one data version and the tags of the
            # one result (dagster issues 34013, 18649), and there must be one for what is
            # downstream to run. So each partition gets a second event, after it, with its own; the
            # latest counts.
            yield dg.MaterializeResult(
                data_version=dg.DataVersion(report.data_version),
                metadata=report.metadata,
                check_results=check_results(graph, stage, name, keys),
            )
        if errors or len(keys) > 1:
            for event in AssetHistory(context.instance, dataset, stage, name).events(reports):
                context.log_event(event)
        if errors:
            failure = failure_of(graph, errors, num_keys=len(keys))
            failure.__cause__ = next(iter(errors.values()))
            raise again_if_fetched(failure, context)

    return body


def _make_all(
    context: dg.AssetExecutionContext,
    graph: BuildGraph,
    stage: Any,
    keys: Sequence[str],
    pool: Pool,
) -> tuple[dict[str, Report], dict[str, Exception]]:
    """Return the reports of the outputs that could be made, and the errors of the others."""
    reports: dict[str, Report] = {}
    errors: dict[str, Exception] = {}
    if stage in FILE_STAGES and stage != "raw":
        made = make_stage(graph, stage, keys, pool, advance=log_progress(context))
        for key, result in made.items():
            if isinstance(result, StageResult):
                reports[key] = report(result)
            else:
                errors[key] = result
        return reports, errors
    log = _slow_log(context)
    for number, key in enumerate(keys):
        try:
            reports[key] = _make(graph, stage, key)
        except (TokflowError, OSError) as error:
            errors[key] = error
        log(f"{number + 1:,} of {len(keys):,} files, last {key}")
    return reports, errors


def _make(graph: BuildGraph, stage: str, name: str) -> Report:
    """Look at one raw file or at all, or make the tokenizer or an export; return its report."""
    if stage == "raw":
        return report_raw(graph.raw(name), graph.partitions[name])
    if stage == "files":
        return report_files(known_files(graph), graph.listing.left_out)
    if stage == "tokenizer":
        return report(make_tokenizer(graph))
    return report(make_export(graph, graph.export_config(name)))


def log_progress(context: Context) -> Advance:
    """Return what hears of tokenized text, and logs it."""
    log, started = _slow_log(context), time.monotonic()
    num_documents = num_bytes = 0

    def advance(more_documents: int, more_bytes: int) -> None:
        nonlocal num_documents, num_bytes
        num_documents += more_documents
        num_bytes += more_bytes
        speed = num_bytes / 1e6 / max(time.monotonic() - started, 1e-3)
        log(f"{num_documents:,} documents, {num_bytes / 1e6:,.0f} MB, {speed:.0f} MB/s")

    return advance


def _slow_log(context: Context) -> Callable[[str], None]:
    """Return what writes a line of the log every few seconds, and no other."""
    last = time.monotonic()

    def log(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LOG_SECONDS:
            last = time.monotonic()
            context.log.info(text)

    return log


def failure_of(
    graph: BuildGraph,
    errors: Mapping[str, Exception],
    *,
    num_keys: int,
    problems: Sequence[str] = (),
) -> dg.Failure:
    """Return the failure that names each file, of `num_keys`, which could not be built, and the
    problems that checks found."""
    keys_of: dict[str, list[str]] = {}
    for key, error in errors.items():
        keys_of.setdefault(message_of(error, where=key), []).append(key)
    lines = [f"{first_five(keys)}: {message}" for message, keys in keys_of.items()]
    if errors and num_keys > 1:
        rest = "; the others were, and are recorded" if len(errors) < num_keys else ""
        head = f"{len(errors):,} of {num_keys:,} files could not be built{rest}"
        lines = [head, *shortened(lines, MAX_SHOWN)]
    return dg.Failure(
        f"{graph.dataset.name}: " + "\n".join([*lines, *problems]),
        metadata={"files": dg.MetadataValue.json(list(errors)[:MAX_SHOWN])},
        allow_retries=any(_is_remote(graph, key) for key in errors),
    )


def again_if_fetched(failure: dg.Failure, context: Context) -> dg.Failure | dg.RetryRequested:
    """Return what a step raises: the failure, or where it may pass, a request to try once more."""
    tries = context.retry_number
    if not failure.allow_retries or tries >= FETCH_AGAIN.max_retries:
        return failure
    again = dg.RetryRequested(FETCH_AGAIN.max_retries, FETCH_AGAIN.calculate_delay(tries + 1))
    again.__cause__ = failure
    return again


def _is_remote(graph: BuildGraph, key: str) -> bool:
    """Return whether another try may help: a server may answer, a file of this disk stays."""
    try:
        return not all(source.is_local for source in graph.partitions[key])
    except (KeyError, TokflowError, OSError):
        return False


def _joined(reports: Mapping[str, Report]) -> Report:
    text = "\n".join(f"{key} {report.data_version}" for key, report in reports.items())
    return Report(hashlib.sha256(text.encode()).hexdigest(), {})

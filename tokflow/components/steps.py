"""Bodies of the assets: each calls one function of `pipeline` and reports what it made."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg

from tokflow.build.dataset import Dataset
from tokflow.build.graph import BuildGraph
from tokflow.build.lines import Lines, now_and_then
from tokflow.build.pipeline import make_export, make_stage, make_tokenizer
from tokflow.build.results import StageResult
from tokflow.components.checks import check_results
from tokflow.components.dagster_names import FILE_STAGES, asset_key, build_job_name, parents
from tokflow.components.file_partitions import known_files, known_partitions, record_raw
from tokflow.components.history import AssetHistory
from tokflow.components.reports import Report, report, report_files, report_raw
from tokflow.components.workers import RESOURCE
from tokflow.errors import MissingOutputError, TokflowError, first_five, message_of, shortened
from tokflow.pools.pool import Pool, open_pool

Results = Iterator[dg.MaterializeResult[Any]]
Body = Callable[[dg.AssetExecutionContext], Results]

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
        keys = _partitions(context, dataset) if stage in FILE_STAGES else [name or stage]
        with open_pool(getattr(context.resources, RESOURCE).jobs) as pool:
            reports, errors = _make_all(context, graph, stage, keys, pool)
            if graph.has_new_verdict:  # those that were made before it are to be made again
                reports, errors = _make_all(context, graph, stage, keys, pool)
        has_new_raw = _record_raw_of(context, graph, stage, keys)
        if not errors:
            report = reports[keys[0]] if len(keys) == 1 else _joined(reports)
            # Dagster 1.13 gives all partitions of a run the one data version and the tags of the
            # one result (dagster issues 34013, 18649), and there must be one for what is
            # downstream to run. So each partition gets a second event, after it, with its own; the
            # latest counts. Tried: outputs that are not required, also of one op for all stages
            # (one event each, but what is downstream, anybody's, is skipped without a word),
            # metadata of a partition (no tags), events of an IO manager (beside Dagster's own).
            yield dg.MaterializeResult(
                data_version=dg.DataVersion(report.data_version),
                metadata=report.metadata,
                check_results=check_results(graph, stage, name, keys),
            )
        if errors or has_new_raw or len(keys) > 1:
            for event in AssetHistory(context.instance, dataset, stage, name).events(reports):
                context.log_event(event)
        if errors:
            first = next(iter(errors.values()))
            cure = f"The job {build_job_name(dataset)} makes all that is missing."
            cures = [cure] if isinstance(first, MissingOutputError) else []
            failure = failure_of(graph, errors, num_keys=len(keys), problems=cures)
            failure.__cause__ = first
            raise again_if_fetched(failure, context)

    return body


def _partitions(context: dg.AssetExecutionContext, dataset: Dataset) -> list[str]:
    """Return the partitions of the run, sorted."""
    if context.has_partition_key or context.has_partition_key_range:
        return sorted(context.partition_keys)
    raise dg.Failure(
        f"{context.asset_key.to_user_string()}: expected the partitions to build, found a run "
        "without any; choose some, or All of them, or launch the job "
        f"{build_job_name(dataset)}, which builds all that is missing",
        allow_retries=False,
    )


def _record_raw_of(
    context: dg.AssetExecutionContext, graph: BuildGraph, stage: str, keys: Sequence[str]
) -> bool:
    """Record the raw files that a stage has read, where this run had no step for them and Dagster
    does not have them; return whether there were any.

    Its outputs would be stale if that happened later, on the next scan.
    """
    raw = asset_key(graph.dataset, "raw")
    if stage not in ("tokens", "tokenizer") or raw not in parents(graph.dataset, stage):
        return False
    found = known_partitions(graph, known_files(graph))
    read = {key: found[key] for key in (keys if stage == "tokens" else found) if key in found}
    return bool(record_raw(context.instance, graph, read, context.log_event))


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
    lines = Lines(context.log.info)
    if stage in FILE_STAGES and stage != "raw":
        lines.stage(stage, num_outputs=len(keys), num_bytes=_num_bytes(graph, keys))
        made = make_stage(graph, stage, keys, pool, advance=lines.advance)
        for key, result in made.items():
            if isinstance(result, StageResult):
                lines.made(result)
                reports[key] = report(result)
            else:
                errors[key] = result
        return reports, errors
    log = now_and_then(context.log.info)
    for number, key in enumerate(keys, start=1):
        try:
            reports[key] = _make(graph, stage, key, lines)
        except (TokflowError, OSError) as error:
            errors[key] = error
        log(partial("{:,} of {:,} files, last {}".format, number, len(keys), key))
    return reports, errors


def _make(graph: BuildGraph, stage: str, name: str, lines: Lines) -> Report:
    """Look at one raw file or at all, or make the tokenizer or an export; return its report."""
    if stage == "raw":
        return report_raw(graph.raw(name), graph.partitions[name])
    if stage == "files":
        return report_files(known_files(graph), graph.listing.left_out)
    if stage == "tokenizer":
        made = make_tokenizer(graph)
    else:
        made = make_export(graph, graph.export_config(name))
    lines.made(made)
    return report(made)


def _num_bytes(graph: BuildGraph, keys: Sequence[str]) -> int:
    """Return the bytes of raw files of this machine; 0 where some are elsewhere or nowhere."""
    sources = [of for key in keys for of in graph.partitions.get(key, ())]
    if not all(of.is_local for of in sources):
        return 0
    paths = (Path(of.url) for of in sources)
    return sum(path.stat().st_size for path in paths if path.is_file())


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


def again_if_fetched(
    failure: dg.Failure, context: dg.OpExecutionContext | dg.AssetExecutionContext
) -> dg.Failure | dg.RetryRequested:
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

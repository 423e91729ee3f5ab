"""Steps: what the body of every asset does around the one function of `pipeline` it calls."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg

from tokflow.build.dataset import Dataset
from tokflow.build.graph import BuildGraph
from tokflow.components.names import scan_job_name
from tokflow.components.reports import Report
from tokflow.components.versions import version_tags
from tokflow.errors import ConfigError, TokflowError, first_five, message_of
from tokflow.raw import check_key

Results = Iterator[dg.MaterializeResult[Any]]
CheckResults = Callable[[Sequence[str]], list[dg.AssetCheckResult]]

LOG_SECONDS = 5.0
"""A line of the log costs some 10 ms and a row of the database."""

MAX_SHOWN = 50
"""Files that a failure lists."""


def materialize_partitions(
    context: dg.AssetExecutionContext,
    graph: BuildGraph,
    make: Callable[[str], Report],
    check: CheckResults = lambda _: [],
) -> Results:
    """Make the partitions of this run, one key, a range or all, and report each.

    A file that cannot be built stops no other: the step fails at the end, and names it.
    """
    keys = sorted(context.partition_keys)
    reports, errors = _make_all(context, graph, keys, make)
    if graph.has_new_verdict:  # those that were made before it are to be made again
        reports, errors = _make_all(context, graph, keys, make)
    if errors:
        _log_materializations(context, reports)
        raise _failure(graph, errors, num_keys=len(keys))
    if len(keys) == 1:
        report = reports[keys[0]]
        yield dg.MaterializeResult(
            data_version=dg.DataVersion(report.data_version),
            metadata=report.metadata,
            check_results=check(keys),
        )
        return
    # Dagster 1.13 gives all partitions of a run the one data version and the tags of the one
    # result (dagster issues 34013, 18649), and there must be one for what is downstream to run.
    # So each partition gets a second event, after it, with its own; the latest counts.
    yield dg.MaterializeResult(
        data_version=dg.DataVersion(_joined(reports)), check_results=check(keys)
    )
    _log_materializations(context, reports)


def _make_all(
    context: dg.AssetExecutionContext,
    graph: BuildGraph,
    keys: Sequence[str],
    make: Callable[[str], Report],
) -> tuple[dict[str, Report], dict[str, Exception]]:
    """Return the reports of the partitions that could be made, and the errors of the others."""
    reports: dict[str, Report] = {}
    errors: dict[str, Exception] = {}
    log = _slow_log(context)
    for number, key in enumerate(keys):
        try:
            _check_is_listed(graph, key)
            reports[key] = make(key)
        except (TokflowError, OSError) as error:
            errors[key] = error
        log(f"{number + 1:,} of {len(keys):,} files, last {key}")
    return reports, errors


def materialize_one(
    graph: BuildGraph,
    make: Callable[[], Report],
    check: Callable[[], list[dg.AssetCheckResult]] = list,
) -> Results:
    """Make an asset without partitions and report it."""
    with failures_named(graph.dataset):
        report = make()
    yield dg.MaterializeResult(
        data_version=dg.DataVersion(report.data_version),
        metadata=report.metadata,
        check_results=check(),
    )


@contextmanager
def failures_named(dataset: Dataset) -> Iterator[None]:
    """Let an error that a user can put right fail the step with its own sentence."""
    try:
        yield
    except (TokflowError, OSError) as error:
        message = message_of(error, where=dataset.name)
        raise dg.Failure(f"{dataset.name}: {message}", allow_retries=False) from error


def log_progress(context: dg.AssetExecutionContext, key: str) -> Callable[[int, int], None]:
    """Return what `make_tokens` calls for each batch; it writes a line every few seconds."""
    log, started = _slow_log(context), time.monotonic()
    num_documents = num_bytes = 0

    def advance(more_documents: int, more_bytes: int) -> None:
        nonlocal num_documents, num_bytes
        num_documents += more_documents
        num_bytes += more_bytes
        speed = num_bytes / 1e6 / max(time.monotonic() - started, 1e-3)
        log(f"{key}: {num_documents:,} documents, {num_bytes / 1e6:,.0f} MB, {speed:.0f} MB/s")

    return advance


def _check_is_listed(graph: BuildGraph, key: str) -> None:
    """Refuse a partition that somebody registered by hand and that is no raw file."""
    check_key(key)
    if key not in graph.sources:
        name = graph.dataset.name
        raise ConfigError(
            where=f"partition {key!r}",
            expected=f"the key of a raw file of {name}",
            found=f"no such file among its {len(graph.sources):,}",
            remedy="put the file where raw.files looks for it, or run the job "
            f"{scan_job_name(graph.dataset)}, which removes partitions without a file",
        )


def _log_materializations(context: dg.AssetExecutionContext, reports: Mapping[str, Report]) -> None:
    """Record each partition with its own metadata, data version and the parents it has now."""
    spec = context.assets_def.get_asset_spec(context.asset_key)
    shared = version_tags(
        context.instance,
        code_version=spec.code_version or context.run_id,
        data_version="",
        parents=[dependency.asset_key for dependency in spec.deps],
    )
    for key, report in reports.items():
        context.log_event(
            dg.AssetMaterialization(
                context.asset_key,
                partition=key,
                metadata=report.metadata,
                tags={**shared, "dagster/data_version": report.data_version},
            )
        )


def _failure(graph: BuildGraph, errors: Mapping[str, Exception], *, num_keys: int) -> dg.Failure:
    keys_of: dict[str, list[str]] = {}
    for key, error in errors.items():
        keys_of.setdefault(message_of(error, where=key), []).append(key)
    lines = [f"{first_five(keys)}: {message}" for message, keys in keys_of.items()]
    more = [f"and {len(lines) - MAX_SHOWN:,} more"] if len(lines) > MAX_SHOWN else []
    head = f"{graph.dataset.name}: {len(errors):,} of {num_keys:,} files could not be built"
    rest = "; the others were, and are recorded" if len(errors) < num_keys else ""
    return dg.Failure(
        "\n".join([head + rest, *lines[:MAX_SHOWN], *more]),
        metadata={"files": dg.MetadataValue.json(list(errors)[:MAX_SHOWN])},
        allow_retries=any(_is_remote(graph, key) for key in errors),
    )


def _is_remote(graph: BuildGraph, key: str) -> bool:
    """Say whether another try may help: a server may answer, a file of this disk stays as it is."""
    try:
        return not graph.sources[key].is_local
    except (KeyError, TokflowError, OSError):
        return False


def _slow_log(context: dg.AssetExecutionContext) -> Callable[[str], None]:
    last = time.monotonic()

    def log(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LOG_SECONDS:
            last = time.monotonic()
            context.log.info(text)

    return log


def _joined(reports: Mapping[str, Report]) -> str:
    text = "\n".join(f"{key} {report.data_version}" for key, report in reports.items())
    return hashlib.sha256(text.encode()).hexdigest()

"""Report of a dataset as its last asset: the page in the store, and its pictures for Dagster."""

import hashlib
import shlex
from math import ceil
from typing import Any

import dagster as dg

from tokflow.components.assets import REPORT, asset_key, asset_keys
from tokflow.components.file_partitions import record_status
from tokflow.components.history import AssetHistory
from tokflow.components.reports import MAX_CHARACTERS, Report, breakable, escaped, for_shell
from tokflow.errors import MissingOutputError, explained
from tokflow.formatting import clipped, size, viewer_command
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.views.picture import Picture, shortened_name

BAR_WIDTH = 6
"""Characters of the longest bar of a picture."""


def report_page(dataset: Dataset) -> Report:
    """Write the report of a dataset; return it for Dagster, each picture once small, once in full
    behind a link, where Dagster puts markdown of more than 999 characters.

    Raises: as `make_report`, and MissingOutputError where nothing is built yet.
    """
    from tokflow.views.report_page import make_report, write_report

    if not _is_begun(dataset):
        raise MissingOutputError(
            where=f"{dataset.name}/report",
            expected="at least one file that is built",
            found="none",
            remedy="materialize what is before it, or run `tokflow run`",
        )

    page = make_report(dataset)
    path = write_report(dataset, page)
    shown = dataset.store.shown(path)
    exports = [dataset.store.shown(dataset.folder / "exports" / of.name) for of in dataset.exports]
    in_full = (
        f"**{escaped(of.title)}**\n\n{of.markdown()}\n\n{escaped(of.note)}" for of in page.pictures
    )
    metadata: dict[str, Any] = {
        "report": for_shell(
            f"tokflow report {dataset.name} --output report.html"
            if "://" in shown
            else f"python -m webbrowser {shlex.quote(shown)}"
        ),
        "viewers": for_shell(*map(viewer_command, exports)),
        "pictures": dg.MetadataValue.md("\n\n".join(in_full)),
        **{of.name: _small(of) for of in page.pictures},
    }
    version = hashlib.sha256(page.html).hexdigest()
    return Report(version, metadata, f"report: {size(len(page.html))}")


def record_pages(
    context: dg.AssetExecutionContext, dataset: Dataset, *, is_news: bool, is_asked: bool = False
) -> None:
    """Record what people look at after a build: the status of the files where that is news, and a
    report, if the run selects it, where it is, or where there is none, or one that was drawn before
    the exports were made; with `is_asked` in any case.

    A failure is a warning in the log and harms no data: the report stays stale, and the next build
    draws it.

    Raises: what keeps a report that `is_asked` from being drawn.
    """
    is_meant = asset_key(dataset, REPORT) in context.selected_asset_keys
    is_asked &= is_meant
    try:
        if is_news and dataset.mixture is None:
            is_news = record_status(context.instance, dataset, context.log_event)
        is_due = is_meant and (is_news or is_report_behind(context.instance, dataset))
        if is_asked or (is_due and _is_begun(dataset)):
            report = report_page(dataset)
            history = AssetHistory(context.instance, dataset, REPORT)
            if is_asked or history.unrecorded({"": report.data_version}):
                history.record({"": report}, context.log_event)
    except Exception as error:
        if is_asked:
            raise
        context.log.warning(str(explained(error, where=f"the report of {dataset.name}")))


def is_report_behind(instance: dg.DagsterInstance, dataset: Dataset) -> bool:
    """Return whether the report of a dataset that has one as an asset is missing, in the store or
    in Dagster, or was drawn before the exports were made."""
    from tokflow.views.report_page import REPORT_PATH

    if (REPORT, "") not in asset_keys(dataset):
        return False
    is_there = (dataset.folder / REPORT_PATH).is_file()
    return not is_there or AssetHistory(instance, dataset, REPORT).is_behind


def _is_begun(dataset: Dataset) -> bool:
    """Return whether anything of any file is built, so that a report has something to show."""
    graph = graph_of(dataset, offline=True)
    first = next(of for of in dataset.stages if of.is_of_file)
    return any(of.is_made for of in graph.outputs_of(first.name, graph.partitions))


def _small(picture: Picture) -> dg.MarkdownMetadataValue:
    """Return the bars of a picture of the report, with its note, as a table that Dagster shows
    without a click; of another picture the note."""
    lines = [
        f"| {breakable(escaped(shortened_name(name)))} "
        f"| {'▇' * ceil(BAR_WIDTH * length / picture.full)} | {escaped(words)} |"
        for name, length, words in picture.bars
    ]
    table = "\n".join(["| | | |", "|:--|:--|:--|", *lines, "", ""]) if lines else ""
    return dg.MetadataValue.md(clipped(f"{table}{escaped(picture.note)}", MAX_CHARACTERS))

"""Page of a report: everything in one file that asks nobody for anything."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokflow.build.dataset import Dataset
from tokflow.build.plan import make_plan
from tokflow.build.status import FileStatus, file_statuses
from tokflow.report import check_report
from tokflow.report.lengths import document_lengths
from tokflow.report.picture import Picture
from tokflow.report.sample import open_shards
from tokflow.store.atomic import new_file
from tokflow.store.remote.publication import publish_beside

REPORT_PATH = Path("report", "report.html")
"""Place of the page below the folder of its dataset."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportPage:
    """A report: the page, and its pictures for who shows them elsewhere."""

    html: bytes = field(repr=False)
    pictures: tuple[Picture, ...]


def make_report(dataset: Dataset) -> ReportPage:
    """Return the report of a dataset as it is in its store now; the same store gives the same
    bytes.

    Raw files are hashed where they are new, as by `make_plan`; no document of them is read.

    Raises: ConfigError where matplotlib is not installed.
    """
    check_report(f"report of {dataset.name}")
    plan = make_plan(dataset)
    pictures = tuple(filter(None, [document_lengths(open_shards(plan))]))
    return ReportPage(html=_page(dataset, file_statuses(plan), pictures), pictures=pictures)


def _page(dataset: Dataset, statuses: Sequence[FileStatus], pictures: Sequence[Picture]) -> bytes:
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    template = environment.get_template("page.html")
    page = template.render(name=dataset.name, statuses=statuses, pictures=pictures)
    return page.encode(errors="replace")


def write_report(dataset: Dataset) -> Path:
    """Write the report of a dataset to `<store>/<dataset>/report/report.html`, whole or not at
    all, and return that path; of a store at a URL it is put there as well.

    It is a file beside the outputs and no output: it has times in it. Raises: as `make_report`.
    """
    path = dataset.folder / REPORT_PATH
    html = make_report(dataset).html
    with new_file(path) as temporary:
        temporary.write_bytes(html)
    publish_beside(path, html)
    return path

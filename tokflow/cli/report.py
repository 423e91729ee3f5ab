"""`tokflow report`: one page of pictures and tables for each dataset."""

from pathlib import Path
from typing import Any

from tokflow.cli.options import Configs, Json, Names, ProjectFolder, ReportFile, StoreName
from tokflow.cli.selection import select
from tokflow.cli.terminal import print_json, shown_path
from tokflow.errors import ConfigError
from tokflow.pipeline.dataset import Dataset
from tokflow.shown import size


def main(
    names: Names = None,
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    output: ReportFile = None,
    json: Json = False,
) -> None:
    """Write the report of each dataset, and print its path."""
    from tokflow.report import check_report

    check_report("tokflow report")
    datasets = select(names, configs, store)
    if output is not None and len(datasets) > 1:
        raise ConfigError(
            where="--output",
            expected="one dataset, whose report the file is to hold",
            found=f"{len(datasets):,}",
            remedy="name the dataset, or leave --output out",
        )
    reports = [_write(dataset, output) for dataset in datasets]
    if json:
        print_json({"reports": reports})
    else:
        for dataset, of in zip(datasets, reports, strict=True):
            of_dataset = dataset.store if output is None else None
            print(f"report: {shown_path(of['path'], of_dataset)}, {size(of['num_bytes'])}")


def _write(dataset: Dataset, output: Path | None) -> dict[str, Any]:
    """Write one report into its store, or to a file; return where it is."""
    from tokflow.report.page import make_report, write_report
    from tokflow.store.atomic import new_file

    if output is None:
        path = write_report(dataset)
    else:
        path = output
        html = make_report(dataset).html
        with new_file(path) as temporary:
            temporary.write_bytes(html)
    return {"dataset": dataset.name, "path": path, "num_bytes": path.stat().st_size}

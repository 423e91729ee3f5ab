"""`tokflow report`: one page of pictures and tables for each dataset."""

from tokflow.cli.options import Configs, Json, Names, ProjectFolder, ReportFile, StoreName
from tokflow.cli.selection import select
from tokflow.cli.terminal import print_json, shown_path
from tokflow.errors import ConfigError
from tokflow.shown import size
from tokflow.store.atomic import new_file


def main(
    names: Names = None,
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    output: ReportFile = None,
    json: Json = False,
) -> None:
    """Write the report of each dataset, and print its path."""
    from tokflow.views.picture import check_report

    check_report("tokflow report")
    from tokflow.views.report_page import make_report, write_report

    datasets = select(names, configs, store)
    if output is not None and len(datasets) > 1:
        raise ConfigError(
            where="--output",
            expected="one dataset, whose report the file is to hold",
            found=f"{len(datasets):,}",
            remedy="name the dataset, or leave --output out",
        )
    reports = []
    for dataset in datasets:
        path = output or write_report(dataset)
        if output is not None:
            with new_file(output) as temporary:
                temporary.write_bytes(make_report(dataset).html)
        num_bytes = path.stat().st_size
        reports.append({"dataset": dataset.name, "path": path, "num_bytes": num_bytes})
        if not json:
            shown = shown_path(path, None if output else dataset.store)
            print(f"report: {shown}, {size(num_bytes)}")
    if json:
        print_json({"reports": reports})

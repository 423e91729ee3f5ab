"""`tokflow gc` and `tokflow prune-runs`: outputs that no current config refers to, and old runs of
Dagster's history, listed or removed."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from tokflow.cli.options import Configs, Json, Names, ProjectFolder, StoreName, select
from tokflow.cli.terminal import print_json, print_styled
from tokflow.formatting import counted, size
from tokflow.pipeline.gc import drop, find_garbage, num_spare_bytes, remove_all, spare_tokens
from tokflow.pipeline.mixture import graph_of

Yes = Annotated[
    bool, typer.Option("--yes", help="Remove what is listed; without it nothing is removed.")
]

Days = Annotated[
    float,
    typer.Option(min=0, max=36_500, help="Days to keep a run in the history after its end."),
]


def main(
    names: Names = None,
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    keep: Annotated[
        int, typer.Option(min=0, help="Newest outputs to keep of each stage and file.")
    ] = 2,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Also the tokens, which the exports do not need.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """List the outputs that are not needed; remove them with `yes`.

    Nothing is removed unless every dataset is built.
    """
    documents = []
    datasets = select(names, configs, store)
    found = [(dataset, find_garbage(dataset, keep=keep)) for dataset in datasets]
    for dataset, garbage in found:
        spare = spare_tokens(graph_of(dataset, offline=True)) if tokens else []
        num_bytes = sum(garbage.values())
        for folder, num in garbage.items():
            if not json:
                print_styled(f"{folder.relative_to(dataset.folder)}  {size(num)}")
        num_spare = num_spare_bytes(spare)
        if yes:
            remove_all(dataset.store, garbage)
            drop(spare)
        documents.append(
            {
                "dataset": dataset.name,
                "is_dry_run": not yes,
                "num_bytes": num_bytes,
                "folders": list(garbage),
                **({"num_token_bytes": num_spare} if tokens else {}),
            }
        )
        verb = "removed" if yes else "would be removed by --yes"
        if not json:
            outputs = f"{counted(len(garbage), 'output')} of {size(num_bytes)} {verb}"
            print(f"{dataset.name}: {outputs if garbage else 'nothing to remove'}")
        if tokens and not json:
            files = f"the tokens of {counted(len(spare), 'file')}, {size(num_spare)},"
            print(f"{dataset.name}: {f'{files} {verb}' if spare else 'no tokens that may go'}")
    if json:
        print_json({"datasets": documents})


def prune_runs(
    days: Days = 90, project: ProjectFolder = None, yes: Yes = False, json: Json = False
) -> None:
    """Count the runs that ended that many days ago; remove them with `yes`."""
    from tokflow.components import open_instance
    from tokflow.components.instance import find_old_runs, remove_runs

    before = datetime.now(UTC) - timedelta(days=days)
    with open_instance() as instance:
        old = find_old_runs(instance, before=before)
        if yes:
            remove_runs(instance, old.removable)
    if json:
        print_json({"is_dry_run": not yes, "removed": old.removable, "kept": old.needed})
        return
    verb = "removed" if yes else "would be removed by --yes"
    runs = f"{counted(len(old.removable), 'run')} of before {before:%Y-%m-%d %H:%M} UTC {verb}"
    print(f"{runs}, {len(old.needed):,} kept that say what is built")

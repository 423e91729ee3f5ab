"""Options and arguments of the commands, and the datasets that they choose."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokflow.cli.terminal import print_error
from tokflow.errors import ConfigError, nearest
from tokflow.pipeline.project import PROJECT_VARIABLE, find_project
from tokflow.store.store import Store
from tokflow.store.stored_outputs import open_store

if TYPE_CHECKING:  # it imports every stage
    from tokflow.pipeline.dataset import Dataset

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...",
        help="Datasets declared by a defs.yaml of the project, or by --config; by default all.",
    ),
]
ProjectFolder = Annotated[
    Path | None,
    typer.Option(
        "--project",
        metavar="DIR",
        envvar=PROJECT_VARIABLE,
        help="Folder of the project, whose pyproject.toml has \\[tool.dg.project]; by default the "
        "nearest one, from the current folder up.",
    ),
]
Configs = Annotated[
    list[Path] | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A YAML file that declares datasets, instead of the project's, or - for standard "
        "input; can be repeated. What it builds is not recorded in Dagster's history, since no "
        "code location declares it.",
    ),
]
StoreName = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|URL",
        help="Folder for all outputs, or a URL such as s3://bucket/prefix; overrides the YAML's "
        "`store`.",
    ),
]
Partitions = Annotated[
    list[str] | None,
    typer.Option(
        "--partition",
        metavar="KEY",
        help="Only this raw file; can be repeated. A run exports when all are built.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Parallel processes; by default TOKFLOW_JOBS, or one per core.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run a tokenizer that is Python code, with your rights; without it, tokens are shown "
        "as ids. For a dataset its YAML decides.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Export = Annotated[
    str,
    typer.Argument(
        metavar="EXPORT", help="The folder of an export, or its `latest` link, or the URL of one."
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write a page to browse an export token by token: at most 2 MB, and it makes no "
        "requests.",
    ),
]


Words = Sequence[str] | None
"""Values of an option or argument that can be repeated; None if it was not given."""
Paths = Sequence[Path] | None


def select(
    names: Words,
    configs: Paths = None,
    store: str | None = None,
    *,
    is_one: bool = False,
    broken: dict[str, ConfigError] | None = None,
) -> "list[Dataset]":
    """Return the named datasets, by default all, from the files of --config or from the project.

    `broken`: takes the errors of YAML files, by dataset, which are printed here and stop no other;
    that of the only dataset that is named is raised.

    Raises: ConfigError where a YAML file is wrong, too, two datasets would be built in the same
    folder, or there are several with `is_one`, for partitions are given.
    """
    from tokflow.pipeline.declared import load_datasets  # late: it imports every stage

    opened = None if store is None else open_store(store)
    if configs:
        of_files = [(of, path) for path in configs for of in load_datasets(path, store=opened)]
        known = list(dict.fromkeys(dataset.name for dataset, _ in of_files))
        if unknown := [name for name in names or () if name not in known]:
            raise ConfigError(
                where=f"dataset {unknown[0]!r}",
                expected=f"one of {', '.join(known)}",
                found="none of that name in the files of --config",
                remedy=nearest(unknown[0], known)
                or "correct the name, or leave out --config for one that the project declares",
            )
        of_files = [(of, path) for of, path in of_files if of.name in (names or known)]
        datasets = [dataset for dataset, _ in of_files]
        first: dict[Path, Path] = {}
        for dataset, config in of_files:
            if (other := first.setdefault(dataset.folder, config)) is not config:
                raise ConfigError(
                    where="--config",
                    expected="datasets of different names, or with different stores",
                    found=f"{dataset.name!r} in {dataset.store.name} for both {other} and {config}",
                    remedy="rename one of them, or leave one out",
                )
    else:
        datasets = _load(names, opened, broken)
    if is_one and len(datasets) > 1:
        raise ConfigError(
            where="--partition",
            expected="one dataset, whose raw files the keys are of",
            found=f"{len(datasets):,}",
            remedy="name the dataset",
        )
    return datasets


def _load(
    names: Words, store: Store | None, broken: dict[str, ConfigError] | None
) -> "list[Dataset]":
    from tokflow.pipeline.declared import list_declared, load_declared

    declared = list_declared()
    if files := [name for name in names or () if name not in declared and Path(name).is_file()]:
        raise ConfigError(
            where=f"dataset {files[0]!r}",
            expected="the name of a dataset that the project declares",
            found="a file",
            remedy=f"write --config {files[0]}",
        )
    unknown = [name for name in names or () if name not in declared]
    if unknown or not declared:
        project = find_project()
        found = f"no project in {Path.cwd()} or above"
        remedy = "go to a folder of a project, whose pyproject.toml has [tool.dg.project], name "
        remedy += "it by --project, or name a file by --config"
        if project:
            found = f"none {'of that name' if declared else 'declared'} in {project.defs}"
            remedy = "correct the name, declare it in a defs.yaml there, or name a file by --config"
        raise ConfigError(
            where=f"dataset {unknown[0]!r}" if declared else "arguments",
            expected=f"one of {', '.join(declared)}" if declared else "a dataset",
            found=found,
            remedy=remedy,
        )
    datasets, chosen = [], dict.fromkeys(names or declared)
    for name in chosen:
        try:
            datasets.append(load_declared(declared[name], store))
        except ConfigError as error:
            if broken is None or (names and len(chosen) == 1):
                raise
            broken[name] = error
            print_error(str(error), error)
    return datasets

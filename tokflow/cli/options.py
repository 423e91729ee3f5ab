"""Options and arguments of the commands."""

from pathlib import Path
from typing import Annotated

import typer

from tokflow.pipeline.project import PROJECT_VARIABLE

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

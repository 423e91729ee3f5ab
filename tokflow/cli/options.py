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
TokenizerNames = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A tokenizer without a dataset: bytes, an encoding of tiktoken, a tokenizer.json, "
        "a .model, a folder or a hub id; can be repeated. Nothing is stored.",
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
PoolName = Annotated[
    str | None,
    typer.Option(
        "--pool",
        metavar="local|ray",
        help="Where tasks run: processes of this machine (the default, or TOKFLOW_POOL), or the "
        "Ray cluster that RAY_ADDRESS names or this machine is part of.",
    ),
]
ShardText = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Only share I, from 1, of N shares of the raw files, without exports, for batch "
        "systems. Run again without --shard when all shares are done.",
    ),
]
Expose = Annotated[
    bool,
    typer.Option(
        "--expose-without-login",
        help="Allow other addresses. The web UI has no login: anyone who reaches it can run code "
        "as you.",
    ),
]
RawFiles = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="Raw files of this machine: paths, globs in quotes, or folders; or a dataset of "
        "the hub, hf://datasets/org/name.",
    ),
]
TextField = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD",
        help="Field or column with the text; by default chats, or a prompt and its completion, "
        "else the one called text, content or body, else the one with the most text.",
    ),
]
ExistingTokenizer = Annotated[
    str | None,
    typer.Option(
        metavar="TOKENIZER",
        help="An encoding of tiktoken such as gpt2, a hub id (org/name), or a file or folder; by "
        "default a tokenizer is trained on the raw files. Chats need one.",
    ),
]
Days = Annotated[
    float,
    typer.Option(min=0, max=36_500, help="Days to keep a run in the history after its end."),
]
Yes = Annotated[
    bool, typer.Option("--yes", help="Remove what is listed; without it nothing is removed.")
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
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="File to write, of one dataset; by default STORE/NAME/report/report.html.",
    ),
]
PartShown = Annotated[
    str | None, typer.Option(help="With --html: the only part to show; by default all.")
]
FirstShown = Annotated[
    int, typer.Option(min=0, metavar="N", help="With --html: the first sequence to show.")
]
SequencesShown = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=1_000_000,
        help="Sequences of each part to show; by default 2, with --html as many as fit.",
    ),
]
Recheck = Annotated[
    bool,
    typer.Option(
        "--recheck",
        help="Compute all checks again. A check that passed is remembered in the store, and "
        "skipped while its files are unchanged. With a store at a URL, first list its objects, "
        "and make again each output that lacks one. `tokflow verify` reads all bytes.",
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Begin also where the disk has plainly too little room."),
]

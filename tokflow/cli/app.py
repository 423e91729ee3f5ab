"""Commands and their options. The module called as a command does its work, imported when used.

Exit status: 0 done, 1 failed, 2 wrong usage: what was typed, in the command line or in a dataset's
YAML, is wrong, or leads to nothing.
"""

import functools
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from tokflow.build.declarations.project import PROJECT_VARIABLE
from tokflow.cli.terminal import reports_errors

app = typer.Typer(
    name="tokflow",
    help="Raw text in, LLM training data out: exact, complete, fast, traceable.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...",
        help="Datasets that a defs.yaml of the project declares, or those of --config; all of them "
        "by default.",
    ),
]
Project = Annotated[
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
        help="A YAML file anywhere that declares datasets, in place of the project's; may be "
        "repeated. What it builds is not recorded in Dagster's history, since no code location "
        "declares it.",
    ),
]
Store = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder for all outputs, in place of the YAML's `store`."),
]
Partitions = Annotated[
    list[str] | None,
    typer.Option(
        "--partition",
        metavar="KEY",
        help="Only this raw file; may be given several times. Exports follow once all are built.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Processes that work at once; one for each core by default, or TOKFLOW_JOBS.",
    ),
]
ShardText = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Only the share I, from 1, of N shares of the raw files, and no export: for batch "
        "systems. Run it without --shard when all shares are done.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run a tokenizer that is Python code, with your rights; else its tokens are shown as "
        "ids. For a dataset, its YAML decides.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Export = Annotated[Path, typer.Argument(help="The folder of an export, or its `latest` link.")]


def command(declared: Callable[..., None]) -> Callable[..., None]:
    """Register a command, which has no more than its options; `main` of its module takes them."""

    @functools.wraps(declared)
    def run(project: Path | None = None, **options: Any) -> int | None:
        if project is not None:
            os.environ[PROJECT_VARIABLE] = str(project.absolute())  # for the processes begun, too
        status: int | None = import_module(f"tokflow.cli.{declared.__name__}").main(**options)
        return status

    return app.command()(reports_errors(run))


@command
def run(
    names: Names = None,
    configs: Configs = None,
    project: Project = None,
    store: Store = None,
    partitions: Partitions = None,
    jobs: Jobs = None,
    shard: ShardText = None,
    recheck: Annotated[
        bool,
        typer.Option(
            "--recheck",
            help="Compute all asset checks again. A check that passed is remembered in the store, "
            "and not computed while the files it looked at are as they were. `tokflow verify` "
            "computes more, and remembers nothing.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Build what is missing or has changed, export it, and check what is new."""


@command
def plan(
    names: Names = None,
    configs: Configs = None,
    project: Project = None,
    store: Store = None,
    partitions: Partitions = None,
    json: Json = False,
) -> None:
    """Show what a run would build, and why. Builds nothing."""


@command
def init(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Raw files of this machine: paths, globs in quotes, or folders; or a dataset of "
            "the hub, hf://datasets/org/name.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the dataset; by default of the file or folder.")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Field or column that holds the text; by default the one that has most of it.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="File to write; by default one in the project's definitions, or NAME.yaml here "
            "where there is no project. It must not exist.",
        ),
    ] = None,
    project: Project = None,
    json: Json = False,
) -> None:
    """Look at raw files and write a YAML that declares a dataset of them."""


@command
def inspect(
    path: Annotated[
        Path, typer.Argument(help="An output's folder, a link to it, or a file in it.")
    ],
    sequences: Annotated[
        int,
        typer.Option(min=0, max=1_000_000, help="Sequences to show."),
    ] = 2,
    trust_remote_code: Trust = False,
    json: Json = False,
) -> None:
    """Show what an output holds: counts, files, parents, the first sequences decoded.

    Checksums are shown as they are listed; `tokflow verify` compares them.
    """


@command
def tokenizers(
    names: Names = None,
    configs: Configs = None,
    project: Project = None,
    tokenizer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A tokenizer without a dataset: bytes, an encoding of tiktoken, a tokenizer.json, "
            "a .model, a folder or a hub id; may be repeated. Nothing is stored.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A raw file to measure on, its first 4 MB of text at most; by default the first "
            "of each dataset.",
        ),
    ] = None,
    text: Annotated[
        str,
        typer.Option(
            metavar="FIELD",
            help="With --tokenizer: the field or column of --file that holds the text.",
        ),
    ] = "text",
    store: Store = None,
    trust_remote_code: Trust = False,
    json: Json = False,
) -> None:
    """Show tokenizers side by side: ids, EOS, engine, and bytes per token on a file."""


@command
def verify(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH | NAME]", help="An output, a folder of outputs, or a declared dataset."
        ),
    ] = None,
    configs: Configs = None,
    project: Project = None,
    store: Store = None,
    trust_remote_code: Trust = False,
    json: Json = False,
) -> None:
    """Check checksums, structure and counts; for a dataset also a sample against the raw files."""


@command
def trace(
    export: Export,
    token: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Position of a token in the part, from 0; in sequences, sequence times "
            "sequence_length plus column, as if each were filled, whatever `padding` writes.",
        ),
    ] = None,
    sequence: Annotated[
        int | None, typer.Option(min=0, help="Ordinal of a sequence in the part, from 0.")
    ] = None,
    part: Annotated[str, typer.Option(help="Part of the split.")] = "train",
    trust_remote_code: Trust = False,
    json: Json = False,
) -> None:
    """Show the raw file, row and characters that a token or a sequence comes from."""


@command
def formats(
    name: Annotated[
        str | None, typer.Argument(metavar="[FORMAT]", help="One format, with its options.")
    ] = None,
    json: Json = False,
) -> None:
    """List the export formats, or show the files and options of one."""


@command
def convert(
    export: Export,
    to: Annotated[str, typer.Option(metavar="FORMAT", help="The format to make of it.")],
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="KEY=VALUE",
            help="An option of the format, as under `exports` in a YAML, such as "
            "tokens_per_file=1000000 or 'columns=\\[labels]'; may be repeated.",
        ),
    ] = None,
    packing: Annotated[
        list[str] | None,
        typer.Option(
            "--packing",
            metavar="KEY=VALUE",
            help="A field of `packing`, for formats of sequences; may be repeated. By default as "
            "the export was packed.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to write; by default one beside the export."),
    ] = None,
    json: Json = False,
) -> None:
    """Make another format of an export, from its files alone; nothing is tokenized again.

    Sequences made of a stream, such as bin, are in its order: a stream does not tell of the
    dataset's `shuffle.sequences`. Convert an export of sequences, such as parquet, to keep it.
    """


@command
def gc(
    names: Names = None,
    configs: Configs = None,
    project: Project = None,
    store: Store = None,
    keep: Annotated[
        int, typer.Option(min=0, help="Newest outputs to keep of each stage and file.")
    ] = 2,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove the outputs; without it they are only listed.")
    ] = False,
    json: Json = False,
) -> None:
    """List, and with --yes remove, outputs that the datasets as declared do not refer to."""


@command
def ui(
    host: Annotated[
        str, typer.Option(help="Address to listen on; it must lead to this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 takes a free one.")] = 3000,
    expose: Annotated[
        bool,
        typer.Option(
            "--expose-without-login",
            help="Allow another address. The web UI has no login: whoever reaches it can run code "
            "as you.",
        ),
    ] = False,
    project: Project = None,
    json: Json = False,
) -> None:
    """Start Dagster's web UI on this machine, telemetry off; with --json say where."""

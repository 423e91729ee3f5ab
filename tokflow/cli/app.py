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

from tokflow.cli.options import (
    Configs,
    Days,
    ExistingTokenizer,
    Export,
    Expose,
    FirstShown,
    Html,
    Jobs,
    Json,
    Names,
    Partitions,
    PartShown,
    PoolName,
    Project,
    RawFiles,
    Recheck,
    ReportFile,
    SequencesShown,
    ShardText,
    Store,
    TextField,
    TokenizerNames,
    Trust,
    Version,
    Yes,
    check_here,
)
from tokflow.cli.terminal import reports_errors
from tokflow.pipeline.declarations.project import PROJECT_VARIABLE

app = typer.Typer(
    name="tokflow",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def tokflow(version: Version = False) -> None:
    """Raw text in, LLM training data out: exact, complete, fast, traceable."""


def command(declared: Callable[..., None]) -> Callable[..., None]:
    """Register a command, which has no more than its options; `main` of its module takes them."""

    @functools.wraps(declared)
    def run(project: Path | None = None, **options: Any) -> int | None:
        if project is not None:
            os.environ[PROJECT_VARIABLE] = str(project.absolute())  # for the processes begun, too
        options = {name: _as_path(name, value) for name, value in options.items()}
        status: int | None = import_module(f"tokflow.cli.{declared.__name__}").main(**options)
        return status

    return app.command()(reports_errors(run))


def _as_path(name: str, value: Any) -> Any:
    """Return the path that is meant by what was typed for an option that may be a URL."""
    if isinstance(value, Path) and name in ("output", "html"):
        check_here(name, value)
    if not isinstance(value, str) or name not in ("store", "export", "path"):
        return value
    from tokflow.store.stored_outputs import open_store

    return open_store(value) if name == "store" else value


@command
def run(
    names: Names = None,
    configs: Configs = None,
    project: Project = None,
    store: Store = None,
    partitions: Partitions = None,
    jobs: Jobs = None,
    pool: PoolName = None,
    shard: ShardText = None,
    recheck: Recheck = False,
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
    files: RawFiles,
    name: Annotated[
        str | None, typer.Option(help="Name of the dataset; by default of the file or folder.")
    ] = None,
    text: TextField = None,
    tokenizer: ExistingTokenizer = None,
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
def schema(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write, in place of what an earlier tokflow wrote there; by default the "
            "schema is printed.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write the JSON schema of a dataset's YAML, by which editors complete, explain and check."""


@command
def inspect(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="An output's folder, a link to it, a file in it, or the URL of one.",
        ),
    ],
    sequences: SequencesShown = None,
    html: Html = None,
    part: PartShown = None,
    first: FirstShown = 0,
    trust_remote_code: Trust = False,
    json: Json = False,
) -> None:
    """Show what an output holds: counts, files, parents, the first sequences decoded.

    With --html write a page to look through all of it that fits: tokens with their bytes, raw file,
    row and characters, segments, padding and loss mask.

    Checksums are shown as they are listed; `tokflow verify` compares them.
    """


@command
def rejects(
    names: Names = None,
    configs: Configs = None,
    project: Project = None,
    store: Store = None,
    partitions: Partitions = None,
    json: Json = False,
) -> None:
    """List the bad documents that were set aside: file, line, and what is wrong. Builds nothing."""


@command
def report(
    names: Names = None,
    configs: Configs = None,
    project: Project = None,
    store: Store = None,
    output: ReportFile = None,
    json: Json = False,
) -> None:
    """Write a page of pictures and tables about each dataset, to open in a browser."""


@command
def tokenizers(
    names: Names = None,
    configs: Configs = None,
    project: Project = None,
    tokenizer: TokenizerNames = None,
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
            metavar="[PATH | URL | NAME]",
            help="An output, a folder of outputs, or a declared dataset.",
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
def push(
    export: Export,
    to: Annotated[
        str,
        typer.Argument(
            metavar="HF_URL",
            help="A dataset repository of the Hugging Face hub, and a folder in it: "
            "hf://datasets/org/name\\[@revision]\\[/folder]. It is made if it is not there; "
            "HF_TOKEN must be allowed to write.",
        ),
    ],
    private: Annotated[
        bool | None,
        typer.Option(
            "--private/--public",
            help="Who may see it: a repository that is made is private unless --public is given; "
            "one that is there must be as the option says.",
        ),
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(metavar="BRANCH", help="A branch, made if it is not there; main by default."),
    ] = None,
    pull_request: Annotated[
        bool, typer.Option("--pull-request", help="Into a pull request, in place of main.")
    ] = False,
    allow_pickle: Annotated[
        bool,
        typer.Option(
            "--allow-pickle", help="Push pickle files, too, which run code in who loads them."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Put an export into a dataset repository of the hub, with a card, and see that it arrived.

    What the hub has is not sent again: push again after an interruption.
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
    yes: Yes = False,
    json: Json = False,
) -> None:
    """List, and with --yes remove, outputs that the datasets as declared do not refer to."""


@command
def prune_runs(
    days: Days = 90,
    project: Project = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Count, and with --yes remove, old runs of Dagster's history. The store is not touched.

    The runs that say which version of a file was built last are kept, whatever their age.
    """


@command
def ui(
    host: Annotated[
        str, typer.Option(help="Address to listen on; it must lead to this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 takes a free one.")] = 3000,
    expose: Expose = False,
    project: Project = None,
    json: Json = False,
) -> None:
    """Start Dagster's web UI on this machine, telemetry off; with --json say where."""

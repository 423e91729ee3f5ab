"""The commands by name. Each is the `main` of the module of its name, or a function of its own name
in `HOMES`; the module is imported when the command is called.

Exit status: 0 done, 1 failed, 2 wrong usage: an option, or a field of a dataset's YAML, is wrong or
names something that does not exist.
"""

import functools
import os
import re
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tokflow import __version__
from tokflow.cli.terminal import DONE, reports_errors
from tokflow.errors import ConfigError
from tokflow.pipeline.project import PROJECT_VARIABLE

COMMANDS = {
    "run": "Build what is missing or has changed, export it, and check what is new.",
    "plan": "Show what a run would build, and why. Builds nothing.",
    "mix": "Write YAMLs of a mixture with weights drawn around its sources' shares, to compare.",
    "init": "Look at raw files and write a YAML that declares a dataset of them.",
    "schema": "Print the JSON schema of a dataset's YAML, for completion and checks in editors.",
    "inspect": """Show what an output holds: counts, files, parents, the first sequences decoded.

    With --html write a page to browse as much of it as fits: tokens with their bytes, raw file, row
    and characters, segments, padding and loss mask.

    Checksums are shown as listed; `tokflow verify` compares them.""",
    "rejects": "List the rejected documents: file, line, and reason. Builds nothing.",
    "report": "Write a page of pictures and tables about each dataset, to open in a browser.",
    "tokenizers": "Show tokenizers side by side: ids, EOS, engine, and bytes per token on a file.",
    "verify": "Check checksums, structure and counts; for a dataset also a sample against the raw "
    "files.",
    "receipt": """Write a receipt of an export: one Merkle root over all that it was made from.

    `tokflow verify --receipt FILE` compares it with a store, or a build from the raw files.""",
    "summary": "Write drafts of the summaries of training data that the EU and California ask for.",
    "trace": "Show the raw file, row and characters that a token, a sequence or a step of a "
    "training comes from, or what became of a document.",
    "diff": """Say what differs between two exports, datasets or stores, and from which input it
    comes.

    Exit status: 0 the same, 1 something differs, 2 an error.""",
    "formats": "List the export formats, or show the files and options of one.",
    "push": """Upload an export with a card to a dataset repository of the hub, and verify it.

    Files that the hub has are not sent again, so an interrupted push can be repeated.""",
    "gc": "List, and with --yes remove, outputs that no current config refers to.",
    "prune-runs": """Count, and with --yes remove, old runs of Dagster's history. The store is not \
touched.

    Runs that record which version of a file was built last are kept, whatever their age.""",
    "ui": "Start Dagster's web UI on this machine, telemetry off; with --json only print its URL.",
}
"""Help text by command; `tokflow --help` shows the first paragraph of each."""


HOMES = {
    "prune-runs": "gc",
    "push": "publish",
    "receipt": "publish",
    "rejects": "plan",
    "report": "inspect",
    "schema": "formats",
    "summary": "publish",
}
"""Modules of the commands that share one with another command."""


class Commands(TyperGroup):
    """Command group that shows help without importing the commands."""

    def __init__(self, **fields: Any) -> None:
        listed = {name: TyperCommand(name, help=text) for name, text in COMMANDS.items()}
        super().__init__(**{**fields, "commands": listed})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command with all its options, importing its module."""
        name, listed, rest = super().resolve_command(ctx, args)
        if listed is not None:
            with reports_errors(str(listed.name), {"json": "--json" in rest}):
                listed = load_command(str(listed.name))
        return name, listed, rest


def load_command(name: str) -> Any:
    """Return a command with its options."""
    module = import_module(f"tokflow.cli.{HOMES.get(name, name)}")
    main = getattr(module, name.replace("-", "_") if name in HOMES else "main")

    @functools.wraps(main)
    def run(project: Path | None = None, **options: Any) -> None:
        with reports_errors(name, options):
            if project is not None:
                os.environ[PROJECT_VARIABLE] = str(project.absolute())  # for processes begun, too
            for option in ("output", "html"):
                # A Path keeps one of the slashes of a URL.
                if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(options.get(option))):
                    raise ConfigError(
                        where=f"--{option}",
                        expected="a file on this disk",
                        found="a URL",
                        remedy="name a file, and copy it there",
                    )
            status = main(**options)
        raise typer.Exit(status or DONE)

    alone = typer.Typer(add_completion=False)
    alone.command(name, help=COMMANDS[name])(run)
    return typer.main.get_command(alone)


app = typer.Typer(
    name="tokflow",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"tokflow {__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=_show_version, is_eager=True, help="Show the version and end."
    ),
]


@app.callback()
def tokflow(version: Version = False) -> None:
    """Raw text in, LLM training data out: exact, complete, fast, traceable."""

"""`tokflow push`: an export into a dataset repository of the hub."""

import sys
from typing import Annotated

import typer

from tokflow.cli.options import Export, Json
from tokflow.cli.terminal import print_json
from tokflow.push.upload import push_export
from tokflow.shown import counted, size

HubFolder = Annotated[
    str,
    typer.Argument(
        metavar="HF_URL",
        help="A dataset repository of the Hugging Face hub, and a folder in it: "
        "hf://datasets/org/name\\[@revision]\\[/folder]. It is created if it does not exist; "
        "HF_TOKEN needs write permission.",
    ),
]
Visibility = Annotated[
    bool | None,
    typer.Option(
        "--private/--public",
        help="Visibility: a new repository is private unless --public is given; an existing one "
        "must match the option.",
    ),
]
Branch = Annotated[
    str | None,
    typer.Option(metavar="BRANCH", help="A branch, created if it does not exist; main by default."),
]
PullRequest = Annotated[
    bool, typer.Option("--pull-request", help="Push to a pull request instead of main.")
]
AllowPickle = Annotated[
    bool,
    typer.Option(
        "--allow-pickle", help="Push pickle files, too, which run code when they are loaded."
    ),
]


def main(
    export: Export,
    to: HubFolder,
    private: Visibility = None,
    revision: Branch = None,
    pull_request: PullRequest = False,
    allow_pickle: AllowPickle = False,
    json: Json = False,
) -> None:
    """Push an export; print a line per commit, and the URL."""
    import huggingface_hub.utils as of_hub

    of_hub.logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # no signed upload URLs
    if not sys.stderr.isatty():
        of_hub.disable_progress_bars()  # type: ignore[attr-defined]
    pushed = push_export(
        export,
        to,
        private=private,
        revision=revision,
        pull_request=pull_request,
        allow_pickle=allow_pickle,
        say=(lambda line: None) if json else (lambda line: print(line, flush=True)),
    )
    if json:
        print_json(pushed)
        return
    sent = f"{counted(pushed.num_sent, 'change')}, {size(pushed.num_sent_bytes)}"
    print(
        f"{counted(pushed.num_files, 'file')}, {size(pushed.num_bytes)}: all there with the sha256 "
        f"of the manifest ({sent if pushed.num_sent else 'nothing was sent'})"
    )
    visibility = "private" if pushed.is_private else "public"
    print(f"{visibility}: {pushed.url} at {pushed.commit[:7]}")

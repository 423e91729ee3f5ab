"""`tokflow receipt`, `tokflow summary` and `tokflow push`: a statement of all that an export was
made from, signed if a key is given; drafts of summaries of training content, with a table of
domains; an export in a dataset repository of the hub."""

import csv
import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tokflow.cli.options import Configs, Export, Json, ProjectFolder, StoreName, select
from tokflow.cli.terminal import print_json
from tokflow.exports.reading import find_export
from tokflow.exports.stage import EXPORT
from tokflow.formatting import counted, size
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import list_declared
from tokflow.store.atomic import new_file
from tokflow.store.manifest import indented
from tokflow.store.store import StoredOutput

PASSWORD_VARIABLE = "TOKFLOW_KEY_PASSWORD"

ExportName = Annotated[str | None, typer.Option("--export", metavar="NAME", help="Of one export.")]
OutputFolder = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write into.")
]


def receipt(
    target: Annotated[
        str,
        typer.Argument(
            metavar="NAME|EXPORT", help="A declared dataset, or the folder or URL of an export."
        ),
    ],
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    export: ExportName = None,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A private EC key in PEM that signs it; TOKFLOW_KEY_PASSWORD has its password, if "
            "it has one. Needs the extra sign.",
        ),
    ] = None,
    output: OutputFolder = Path(),
    json: Json = False,
) -> None:
    """Write the receipt of each export, and print its path and root."""
    from tokflow.audit.ancestry import Ancestry
    from tokflow.record.receipt import signed, statement_of

    if configs or target in list_declared():
        exports = exports_of(select([target], configs, store)[0], export)
    else:
        exports = [find_export(target)]
    written = []
    for of in exports:
        statement = statement_of(of, Ancestry())
        data, said = indented(statement), statement["predicate"]
        if key is not None:
            data = signed(data, key, os.environb.get(PASSWORD_VARIABLE.encode()))
        path = output / f"{of.manifest.dataset}-{of.export_name}.receipt.json"
        with new_file(path) as temporary:
            temporary.write_bytes(data)
        written.append({"path": path, "merkle_root": said["merkle_root"], "signed": bool(key)})
        if not json:
            made_of = counted(len(said["leaves"]), "manifest")
            print(f"{path}: root {said['merkle_root']} of {made_of}{', signed' if key else ''}")
    if json:
        print_json({"receipts": written})


def exports_of(dataset: Dataset, name: str | None) -> list[StoredOutput]:
    """Return the newest exports of a dataset, or the one that is named. Raises: MissingOutputError
    where one is not built, or none is declared."""
    names = [name] if name else [of.name for of in dataset.exports] or [""]
    folder = f"{dataset.store.name}/{dataset.name}/{EXPORT.path}"
    return [find_export(f"{folder}/{of}") for of in names]


def summary(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A declared dataset.")],
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    export: ExportName = None,
    column: Annotated[
        str,
        typer.Option(
            "--url-column", metavar="NAME", help="Column of documents.keep_columns that has URLs."
        ),
    ] = "url",
    output: OutputFolder = Path(),
    json: Json = False,
) -> None:
    """Write the drafts and the table, of the first export unless one is named; print their
    paths."""
    from tokflow.audit.ancestry import Ancestry
    from tokflow.record.export_card import cards_of
    from tokflow.record.facts import known_facts
    from tokflow.record.summary import GAP, domains_of, drafts_of

    [dataset] = select([name], configs, store)
    ancestry, stored = Ancestry(dataset.known_stages), exports_of(dataset, export)[0]
    facts = known_facts(stored, cards_of(dataset), ancestry)
    domains = domains_of(stored, column, ancestry)
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([("domain", "documents", "bytes"), *domains])
    files = {
        **drafts_of(facts, domains),
        **({"domains.csv": table.getvalue()} if domains else {}),
    }
    written = []
    for ending, text in files.items():
        path = output / f"{dataset.name}.{ending}"
        with new_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
        num_gaps = text.count(GAP)
        written.append({"path": path, "num_gaps": num_gaps})
        if not json:
            print(f"{path}: {counted(num_gaps, 'gap')} to fill in" if num_gaps else path)
    if json:
        print_json({"files": written})


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


def push(
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

    from tokflow.push.upload import push_export

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

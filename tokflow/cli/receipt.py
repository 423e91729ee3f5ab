"""`tokflow receipt` and `tokflow summary`: a statement of all that an export was made from, signed
if a key is given; drafts of summaries of training content, with a table of domains."""

import csv
import io
import os
from pathlib import Path
from typing import Annotated

import typer

from tokflow.cli.options import Configs, Json, ProjectFolder, StoreName
from tokflow.cli.selection import select
from tokflow.cli.terminal import print_json
from tokflow.exports.reading import find_export
from tokflow.exports.stage import EXPORT
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import list_declared
from tokflow.shown import counted
from tokflow.store.atomic import new_file
from tokflow.store.manifest import indented
from tokflow.store.store import StoredOutput

PASSWORD_VARIABLE = "TOKFLOW_KEY_PASSWORD"

ExportName = Annotated[str | None, typer.Option("--export", metavar="NAME", help="Of one export.")]
OutputFolder = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write into.")
]


def main(
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
    from tokflow.record.beside import cards_of
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

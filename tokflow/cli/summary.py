"""`tokflow summary`: drafts of summaries of training content, and a table of domains."""

import csv
import io
from pathlib import Path
from typing import Annotated

import typer

from tokflow.cli.options import Configs, Json, ProjectFolder, StoreName
from tokflow.cli.receipt import ExportName, OutputFolder, exports_of
from tokflow.cli.selection import select
from tokflow.cli.terminal import print_json
from tokflow.shown import counted
from tokflow.store.atomic import new_file

Column = Annotated[
    str,
    typer.Option(
        "--url-column", metavar="NAME", help="Column of documents.keep_columns that has URLs."
    ),
]


def main(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A declared dataset.")],
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    export: ExportName = None,
    column: Column = "url",
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

"""`tokflow receipt`: a statement of all that an export was made from, signed if a key is given."""

import os
from pathlib import Path
from typing import Annotated

import typer

from tokflow.cli.options import Configs, Json, ProjectFolder, StoreName
from tokflow.cli.selection import select
from tokflow.cli.terminal import print_json
from tokflow.errors import ConfigError
from tokflow.exports.reading import find_export
from tokflow.exports.stage import EXPORT
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import list_declared
from tokflow.shown import counted
from tokflow.store.atomic import new_file
from tokflow.store.manifest import indented
from tokflow.store.store import StoredOutput
from tokflow.store.stored_outputs import output_in

PASSWORD_VARIABLE = "TOKFLOW_KEY_PASSWORD"

Target = Annotated[
    str,
    typer.Argument(
        metavar="NAME|EXPORT", help="A declared dataset, or the folder or URL of an export."
    ),
]
ExportName = Annotated[
    str | None,
    typer.Option("--export", metavar="NAME", help="Of a dataset, only this export."),
]
PrivateKey = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="A private EC key in PEM that signs it; TOKFLOW_KEY_PASSWORD has its password, if it "
        "has one. Needs the extra sign.",
    ),
]
ReceiptFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="File to write; by default DATASET-EXPORT.receipt.json in the current folder.",
    ),
]


def main(
    target: Target,
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    export: ExportName = None,
    key: PrivateKey = None,
    output: ReceiptFile = None,
    json: Json = False,
) -> None:
    """Write the receipt of each export, and print its path and root."""
    from tokflow.audit.ancestry import Ancestry
    from tokflow.record.receipt import statement_of
    from tokflow.record.signature import signed

    exports = _exports(target, configs, store, export)
    if output is not None and len(exports) > 1:
        raise ConfigError(
            where="--output",
            expected="one export, whose receipt the file is to hold",
            found=", ".join(of.export_name for of in exports),
            remedy="name one by --export, or leave --output out",
        )
    password = os.environ.get(PASSWORD_VARIABLE)
    written = []
    for of in exports:
        statement = statement_of(of, Ancestry())
        data = indented(statement)
        if key is not None:
            data = signed(data, key, password.encode() if password else None)
        path = output or Path(f"{of.manifest.dataset}-{of.export_name}.receipt.json")
        with new_file(path) as temporary:
            temporary.write_bytes(data)
        said = statement["predicate"]
        written.append({"path": path, "merkle_root": said["merkle_root"], "signed": bool(key)})
        if not json:
            made_of = counted(len(said["leaves"]), "manifest")
            print(f"{path}: root {said['merkle_root']} of {made_of}{', signed' if key else ''}")
    if json:
        print_json({"receipts": written})


def _exports(
    target: str, configs: list[Path] | None, store: str | None, name: str | None
) -> list[StoredOutput]:
    if not configs and target not in list_declared():
        return [find_export(target)]
    [dataset] = select([target], configs, store)
    return exports_of(dataset, name)


def exports_of(dataset: Dataset, name: str | None) -> list[StoredOutput]:
    """Return the newest exports of a dataset, or the one that is named. Raises: ConfigError where
    none of that name is declared, MissingOutputError where it is not built."""
    names = [of.name for of in dataset.exports]
    if not names or (name is not None and name not in names):
        raise ConfigError(
            where="--export",
            expected=f"one of {', '.join(names)}" if names else "a dataset that declares exports",
            found=repr(name) if names else f"none in {dataset.name}",
            remedy="correct the name",
        )
    dataset.store.refresh_dataset(dataset.folder)
    folder = dataset.folder / EXPORT.path
    return [output_in(dataset.store, folder / of) for of in ([name] if name else names)]

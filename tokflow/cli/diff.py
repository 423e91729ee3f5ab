"""`tokflow diff`: what differs between two exports, datasets or stores, and why."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tokflow.audit.differences import compare
from tokflow.audit.sides import Side, side_of, side_of_dataset
from tokflow.cli.options import Json, ProjectFolder, StoreName, select
from tokflow.cli.terminal import FAILED, print_json, print_styled, print_table
from tokflow.errors import ConfigError, explained, first_five
from tokflow.formatting import clipped, counted
from tokflow.pipeline.declared import list_declared

WIDTH = 40
"""Characters of a value in a table."""

OUTPUTS_SHOWN = 50
"""Pairs of outputs of which a line says what differs."""

A = Annotated[
    str,
    typer.Argument(
        metavar="A",
        help="An output, a dataset or a store, by path or URL; a declared dataset as it is now; or "
        "a YAML file that declares one.",
    ),
]
B = Annotated[str, typer.Argument(metavar="B", help="What A is compared with, named likewise.")]
Limit = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Documents of each export to show and, with --json, which has all of them, to decode.",
    ),
]


def main(
    a: A,
    b: B,
    project: ProjectFolder = None,
    store: StoreName = None,
    limit: Limit = 10,
    json: Json = False,
) -> int:
    """Print a summary, then fields, raw files and documents that differ; return the exit status: 0
    of the same, 1 where something differs, 2 after an error."""
    try:
        sides = [_side(of, store) for of in (a, b)]
        found = compare(*sides, limit=None if json else limit, num_shown=limit)
    except Exception as error:  # 1 would say that they differ
        raise ConfigError(**explained(error, where="tokflow diff").fields()) from error
    print_json(found) if json else _print(found)
    return 0 if found["is_same"] else FAILED


def _side(target: str, store: str | None) -> Side:
    path = Path(target)
    is_yaml = path.suffix in (".yaml", ".yml") and path.is_file()
    if not (is_yaml or target in list_declared()):
        return side_of(target)
    datasets = select(None if is_yaml else [target], [path] if is_yaml else None, store)
    roots = [side_of_dataset(of, target).roots for of in datasets]
    return Side(target, {key: output for of in roots for key, output in of.items()})


def _print(found: dict[str, Any]) -> None:
    print_styled(f"A: {found['a']}")
    print_styled(f"B: {found['b']}")
    for side in ("A", "B"):
        for name in found[f"only_{side.lower()}"]:
            print_styled(f"only in {side}: {name}")
    for output in found["outputs"][:OUTPUTS_SHOWN]:
        print_styled((output["name"], "bold"), f": {output['result']}")
        if "kinds" in output:
            _print_summary(output)
    if len(found["outputs"]) > OUTPUTS_SHOWN:
        print(f"and {len(found['outputs']) - OUTPUTS_SHOWN:,} outputs more")
    kinds = ("different", "only_a", "only_b")
    rows = [
        [of["stage"], f"{of['num_same']:,}", *(f"{len(of.get(kind, ())):,}" for kind in kinds)]
        for of in found["stages"]
        if of.keys() & {*kinds}
    ]
    if rows:
        print_table(("outputs of", "same", "different", "only in A", "only in B"), rows)
    if found["fields"]:
        names = ("stage", "field", "a", "b", "num_outputs", "first")
        each = [
            ["" if row[of] is None else str(row[of]) for of in names] for row in found["fields"]
        ]
        rows = [[clipped(cell, WIDTH) for cell in row] for row in each]
        print_table(("stage", "field", "A", "B", "outputs", "first"), rows)
    said = {"changed": "changed", "only_a": "only in A", "only_b": "only in B"}
    for kind, names in found["raw_files"].items():
        if names:
            print_styled(f"raw files {said[kind]}: {len(names):,}, {first_five(names)}")
    for output in found["outputs"]:
        if output.get("documents"):
            print_styled("documents of ", (output["name"], "bold"), ":")
        for document in output.get("documents", ()):
            _print_document(document)
    for note in found["notes"]:
        print_styled(f"note: {note}")


def _print_summary(output: dict[str, Any]) -> None:
    """Print how many documents and tokens of an export differ, and where that comes from."""
    a, b = output["num_tokens"]
    print(f"  {a:,} tokens in A, {b:,} in B")
    for kind, of in output["kinds"].items():
        if of["num_documents"]:
            tokens = f"{of['num_tokens_a']:,} tokens in A, {of['num_tokens_b']:,} in B"
            print(f"  {counted(of['num_documents'], 'document')} {kind}: {tokens}")
    for cause, num in output["causes"].items():
        print_styled((f"  {counted(num, 'document')} by {cause}", "dim"))


def _print_document(of: dict[str, Any]) -> None:
    sides = [of["num_tokens_a"], of["num_tokens_b"]]
    parts = [", ".join(f"{num:,} in {part}" for part, num in own.items()) for own in sides]
    print_styled(
        (f"{of['raw_file']}, row {of['row']:,}", "bold"),
        f" {' and '.join(of['kinds'])}: {parts[0] or 'none'} -> {parts[1] or 'none'} ",
        (f"({of.get('left_out_by') or of['cause']})", "dim"),
    )
    if token := of.get("first_other_token"):
        print_styled(f"  token {token['token']:,} is the first other one")
        print_styled(f"  A …{token['a']!r}")
        print_styled(f"  B …{token['b']!r}")

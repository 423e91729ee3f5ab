"""`tokflow init`: a YAML that declares a dataset of raw files, written after a look at them."""

import os
from pathlib import Path
from typing import Any

from tokflow.build.dataset import DEFAULT_STORE
from tokflow.build.declarations.declared import YAML_NAMES, check_new
from tokflow.build.declarations.project import Project, find_project
from tokflow.build.declarations.raw_patterns import as_name, name_of, patterns_of, shortened_to
from tokflow.build.declarations.suggestion import Suggestion, suggest
from tokflow.build.declarations.yaml_writer import dataset_yaml
from tokflow.cli.terminal import (
    counted,
    described_left_out,
    print_json,
    print_styled,
    shown_path,
    size,
)
from tokflow.errors import ConfigError, shortened
from tokflow.shown import printable, redact


def main(
    *, files: list[str], name: str | None, text: str | None, output: Path | None, json: bool
) -> None:
    """Write the YAML and print what was found, and the commands that go on with it.

    Raises: TokflowError; FileExistsError is none of them, for nothing is ever overwritten.
    """
    standing = find_project()
    project = find_project(_absolute(output).parent) if output else standing
    base = project.root if project else _absolute(output or Path("a.yaml")).parent.resolve()
    patterns = patterns_of(files, here=Path.cwd(), store=base / DEFAULT_STORE)
    name = _typed(name) if name else as_name(_name_of_output(output) or name_of(patterns))
    if output is None:
        output = standing.defs / name / YAML_NAMES[0] if standing else Path(f"{name}.yaml")
    output = _absolute(output)
    _check_free(output)
    is_declared = standing is not None and _is_declared(output, standing)
    if standing and is_declared:
        check_new(name, output, standing)
    suggested = suggest(patterns, text=text)
    written = dataset_yaml(name, shortened_to(base, patterns), suggested, in_project=bool(project))
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("x", encoding="utf-8") as file:
        file.write(written)
    named = name if is_declared else f"--config {shown_path(output)}"
    document = {
        "name": name,
        "path": str(output),
        **_found(suggested),
        "commands": [f"tokflow plan {named}", f"tokflow run {named}"],
    }
    if json:
        print_json(document)
    else:
        _print(document, suggested, output)


def _typed(name: str) -> str:
    if as_name(name) != name:
        raise ConfigError(
            where="--name",
            expected="letters, digits, and - or _ between them",
            found=repr(name),
            remedy=f"write {as_name(redact(name))}",
        )
    return name


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 (without following links)


def _is_declared(output: Path, project: Project) -> bool:
    """Return whether a file is one of those that declare the datasets of a project."""
    return output.name in YAML_NAMES and output.is_relative_to(project.defs)


def _name_of_output(output: Path | None) -> str | None:
    """Return the name that a path says: of its folder where Dagster gives the file's name."""
    if output is None:
        return None
    path = _absolute(output)
    return path.parent.name if path.name in YAML_NAMES else path.stem


def _check_free(output: Path) -> None:
    if os.path.lexists(output):
        raise ConfigError(
            where=output,
            expected="a path where nothing is yet, since nothing is overwritten",
            found="a folder" if output.is_dir() else "a file",
            remedy="name another by --output, or give the dataset another --name",
        )


def _found(suggested: Suggestion) -> dict[str, Any]:
    """Return what was found, as plain JSON."""
    return {
        "formats": suggested.formats,
        "num_files": suggested.num_files,
        "num_bytes": suggested.num_bytes,
        "documents": suggested.documents,
        "other_columns": suggested.others,
        "chats": suggested.chats,
        "first_reject": suggested.first_reject,
        "split": suggested.split,
    }


_PER = {
    "file": "each file is a document",
    "line": "each line is a document",
    "separator": "documents end where `documents.separator` stands",
}


def _print(document: dict[str, Any], suggested: Suggestion, output: Path) -> None:
    files = counted(suggested.num_files, "file")
    print_styled(
        (document["name"], "bold"),
        f": {files} of {' and '.join(suggested.formats)}, {size(suggested.num_bytes)}",
    )
    text = suggested.documents.get("text")
    if text is None:
        print(_PER[suggested.documents["document_per"]])
    else:
        others = f"; others with text: {', '.join(shortened(suggested.others))}"
        print(f"the text is in {text!r}{printable(others) if suggested.others else ''}")
    if suggested.chats:
        print(f"chats, not read, are in {printable(', '.join(shortened(suggested.chats)))}")
    if suggested.first_reject is not None:
        print(f"what is no document will be set aside, as {printable(suggested.first_reject)}")
    if suggested.left_out:
        print(described_left_out(suggested.left_out))
    print(f"wrote {shown_path(output)}\n\ngo on with:")
    for command in document["commands"]:
        print(f"  {command}")

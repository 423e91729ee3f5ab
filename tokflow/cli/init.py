"""`tokflow init`: write a YAML that declares a dataset of raw files, from their contents."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

import tokflow
from tokflow.audit.characters import first_chat
from tokflow.cli.options import Json, ProjectFolder
from tokflow.cli.terminal import (
    described_left_out,
    print_chat,
    print_error,
    print_json,
    print_styled,
    shown_path,
)
from tokflow.errors import ConfigError, TokflowError, shortened
from tokflow.formatting import counted, printable, redact, size
from tokflow.pipeline.dataset import DEFAULT_STORE
from tokflow.pipeline.declared import YAML_NAMES, load_datasets
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.project import find_project
from tokflow.pipeline.raw_patterns import as_name, name_of, patterns_of, shortened_to
from tokflow.pipeline.run import make_output
from tokflow.pipeline.suggestion import Suggestion, suggest
from tokflow.pipeline.yaml_writer import check_new, dataset_yaml
from tokflow.raw.globs import has_wildcard
from tokflow.store.config import expanded
from tokflow.store.store import Store
from tokflow.store.urls import is_url
from tokflow.tokenizers.tokenizer import fields_of_name, is_path

DatasetName = Annotated[
    str | None, typer.Option(help="Name of the dataset; by default of the file or folder.")
]
NewYaml = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="File to write; by default one in the project's definitions, or NAME.yaml here "
        "where there is no project. It must not exist.",
    ),
]

ExistingTokenizer = Annotated[
    str | None,
    typer.Option(
        metavar="TOKENIZER",
        help="An encoding of tiktoken such as gpt2, a hub id (org/name), or a file or folder; by "
        "default a tokenizer is trained on the raw files. Chats need one.",
    ),
]

TextField = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD",
        help="Field or column with the text; by default chats, or a prompt and its completion, "
        "else the one called text, content or body, else the one with the most text.",
    ),
]

RawFiles = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="Raw files of this machine: paths, globs in quotes, or folders; or a dataset of "
        "the hub, hf://datasets/org/name.",
    ),
]


def main(
    files: RawFiles,
    name: DatasetName = None,
    text: TextField = None,
    tokenizer: ExistingTokenizer = None,
    output: NewYaml = None,
    project: ProjectFolder = None,
    json: Json = False,
) -> None:
    """Write the YAML; print what was found and the next commands.

    Raises: TokflowError; FileExistsError is none of them, for nothing is ever overwritten.
    """
    project_here = find_project()
    own_code = Path(tokflow.__file__).parent  # a clone's definitions lie in it, and are tokflow's
    is_other = project_here and not project_here.defs.is_relative_to(own_code)
    defs = project_here.defs if project_here and is_other else None
    folder = _absolute(output or Path("a.yaml")).parent
    within = project_here if defs and output is None else find_project(folder)
    base = within.root if within else folder.resolve()
    patterns = patterns_of(files, here=Path.cwd(), store=base / DEFAULT_STORE)
    if name and as_name(name) != name:
        raise ConfigError(
            where="--name",
            expected="letters, digits, and - or _ between them",
            found=repr(name),
            remedy=f"write {as_name(redact(name))}",
        )
    path = output and _absolute(output)
    name_of_path = path and (path.parent.name if path.name in YAML_NAMES else path.stem)
    name = name or as_name(name_of_path or name_of(patterns))
    default = defs / name / YAML_NAMES[0] if defs else Path(f"{name}.yaml")
    output = _absolute(output or default)
    _check_free(output)
    is_declared = False
    if project_here and output.name in YAML_NAMES and output.is_relative_to(project_here.defs):
        is_declared = True
        check_new(name, output, project_here)
    section = _tokenizer_section(tokenizer, base)
    suggested, named = suggest(patterns, text=text), shortened_to(base, patterns)
    how: dict[str, Any] = {"in_project": bool(within), "tokenizer": section}
    written = dataset_yaml(name, named, suggested, **how)
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("x", encoding="utf-8") as file:
        file.write(written)
    document = _document(name, output, named, suggested, section, is_declared=is_declared)
    if json:
        print_json(document)
    else:
        _print(document, suggested, output)


def _print_first_chat(output: Path) -> None:
    """Print the first chat with its loss mask, or why that cannot be."""
    try:
        with TemporaryDirectory(prefix="tokflow-init-") as folder:
            [dataset] = load_datasets(output, store=Store(Path(folder)))
            graph = graph_of(dataset)
            make_output(graph, "tokenizer", "tokenizer")
            path = graph.raw_file(next(iter(graph.sources))).path
            spans = first_chat(path, dataset.documents, graph.tokenizer)
    except TokflowError as error:
        print_error(f"the first chat cannot be shown: {error}")
        return
    print("\nthe first, with a tick where it is supervised:\n")
    print_chat(spans)
    print()


def _tokenizer_section(name: str | None, base: Path) -> dict[str, Any] | None:
    """Return the tokenizer section for a name; a relative path in it starts at `base`.

    Raises: ConfigError where it names a file that is not there.
    """
    if name is None:
        return None
    fields: dict[str, Any] = {**fields_of_name(name)}
    path = _absolute(expanded(name))
    if path.exists() and fields["kind"] in ("file", "sentencepiece", "huggingface"):
        fields["name"] = str(path.relative_to(base) if path.is_relative_to(base) else path)
    elif fields["kind"] in ("file", "sentencepiece") or is_path(name):
        raise ConfigError(
            where="--tokenizer",
            expected="an encoding of tiktoken, a hub id, or a file or folder of a tokenizer",
            found=f"no file {name!r}",
            remedy="correct the path, or write a name such as gpt2 or openai-community/gpt2",
        )
    return fields


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 (without following links)


def _check_free(output: Path) -> None:
    if os.path.lexists(output):
        raise ConfigError(
            where=output,
            expected="a path where nothing is yet, since nothing is overwritten",
            found="a folder" if output.is_dir() else "a file",
            remedy="name another by --output, or give the dataset another --name",
        )


def _document(
    name: str,
    output: Path,
    files: Sequence[str],
    suggested: Suggestion,
    tokenizer: dict[str, Any] | None,
    *,
    is_declared: bool,
) -> dict[str, Any]:
    """Return the JSON document of what was found and written."""
    named = name if is_declared else f"--config {shown_path(output)}"
    return {
        "name": name,
        "path": str(output),
        "files": files,
        "formats": suggested.formats,
        "num_files": suggested.num_files,
        "num_bytes": suggested.num_bytes,
        "group": suggested.proposed_group and suggested.proposed_group.group,
        "documents": suggested.documents,
        "other_columns": suggested.others,
        "chats": suggested.chats,
        "first_reject": suggested.first_reject,
        "split": suggested.split,
        "tokenizer": tokenizer or {"kind": "trained", "vocab_size": suggested.vocab_size},
        "commands": [f"tokflow plan {named}", f"tokflow run {named}"],
    }


_PER = {
    "file": "each file is a document",
    "line": "each line is a document",
    "separator": "documents end where `documents.separator` stands",
}


def _described(documents: Mapping[str, Any]) -> str:
    """Return what a document is."""
    if "document_per" in documents:
        return _PER[documents["document_per"]]
    if "text" in documents:
        return f"the text is in {documents['text']!r}"
    if "prompt" in documents:
        kind = "messages" if "chat_format" in documents else "texts"
        named = f"{documents['prompt']!r} and {documents['completion']!r}"
        return f"prompts and completions are {kind}, in {named}"
    kinds = {"sharegpt": "a ShareGPT chat", "alpaca": "an Alpaca chat"}
    kind = kinds.get(documents.get("chat_format", ""), "a chat")
    place = f" in {documents['messages']!r}" if "messages" in documents else ", the whole record"
    beside = [
        f", {name} in {documents[name]!r}" for name in ("tools", "system") if name in documents
    ]
    return f"each document is {kind}{place}{''.join(beside)}"


def _print(document: dict[str, Any], suggested: Suggestion, output: Path) -> None:
    files = counted(suggested.num_files, "file")
    print_styled(
        (document["name"], "bold"),
        f": {files} of {' and '.join(suggested.formats)}, {size(suggested.num_bytes)}",
    )
    others = f"; others with text: {', '.join(shortened(suggested.others))}"
    print(_described(suggested.documents) + (printable(others) if suggested.others else ""))
    if suggested.chats:
        columns = "chat column" if len(suggested.chats) == 1 else "chat columns"
        print(f"{columns} (ignored): {printable(', '.join(shortened(suggested.chats)))}")
    if suggested.first_reject is not None:
        print(f"invalid rows will be rejected, e.g. {printable(suggested.first_reject)}")
    if document["tokenizer"]["kind"] == "trained":
        print(
            f"a tokenizer of {suggested.vocab_size:,} ids will be trained on the text; "
            "`--tokenizer gpt2` takes an existing one"
        )
    if len(document["files"]) > 1 and not any(map(has_wildcard, document["files"])):
        print(
            f"{counted(len(document['files']), 'file')} are named one by one, so files that come "
            "later are not taken; a glob in quotes takes them, such as 'raw/*.jsonl'"
        )
    if suggested.left_out:
        print(described_left_out(suggested.left_out))
    if suggested.config.is_chat and not is_url(document["files"][0]):
        _print_first_chat(output)
    if suggested.proposed_group:
        print(suggested.proposed_group)
    print(f"wrote {shown_path(output)}\n\nnext:")
    for command in document["commands"]:
        print(f"  {command}")

"""`tokflow trace`: the origin of tokens, of an export or of a step of a training, and what holds
documents."""

import json as json_lines
from pathlib import Path
from typing import Annotated, Any

import typer

from tokflow.audit.document_trace import (
    LIMIT,
    DocumentTraces,
    trace_document,
    trace_documents,
)
from tokflow.audit.step_trace import Training
from tokflow.audit.trace import sequence_range, trace_tokens
from tokflow.cli.options import Configs, Html, Json, ProjectFolder, StoreName, Trust
from tokflow.cli.selection import select
from tokflow.cli.terminal import print_json, shown_path
from tokflow.cli.traced import print_documents, print_origins, print_step
from tokflow.errors import ConfigError
from tokflow.exports.reading import find_export
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import list_declared
from tokflow.shown import size
from tokflow.store.atomic import new_file

Traced = Annotated[
    str | None,
    typer.Argument(
        metavar="[EXPORT | NAME]",
        help="The folder of an export, or its `latest` link, or the URL of one; of a document the "
        "name of a dataset. With --state a dataset, a store or an export, where it is not where "
        "the training read it.",
    ),
]
TokenPosition = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Position of a token in the part, from 0; in sequences, sequence times "
        "sequence_length plus column, as if each were filled, whatever `padding` writes.",
    ),
]
SequenceOrdinal = Annotated[
    int | None, typer.Option(min=0, help="Ordinal of a sequence in the part, from 0.")
]
PartName = Annotated[str, typer.Option(help="Part of the split.")]


RawFileKey = Annotated[
    str | None,
    typer.Option(
        "--file",
        metavar="KEY",
        help="With --row and, in place of EXPORT, the name of a dataset: the raw file of a "
        "document, by its path below the raw folder.",
    ),
]
RowOrdinal = Annotated[
    int | None, typer.Option(min=0, help="Ordinal of a document in --file, from 0.")
]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="EXPRESSION",
        help="With the name of a dataset: the documents that it is true of, in the grammar of "
        "`select`, over its columns and `row`, such as \"url == 'https://example.org/fox'\".",
    ),
]
TextFile = Annotated[
    Path | None,
    typer.Option(
        "--text",
        metavar="FILE",
        help="With the name of a dataset: the documents with the text of a file.",
    ),
]
Limit = Annotated[
    int, typer.Option(min=1, help="With --where or --text: documents to show; all are counted.")
]


StateFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The state of a loader as JSON, `json.dumps(loader.state_dict())`: with --step the "
        "training to look into; with documents the training that may have seen them.",
    ),
]
Step = Annotated[
    int | None,
    typer.Option(min=0, help="A batch of the training, from 0: its samples and their documents."),
]
Rank = Annotated[
    int | None, typer.Option(min=0, help="With --step: only the samples of this rank.")
]
WorldSize = Annotated[
    int, typer.Option(min=1, help="Ranks of the training; a state does not tell them.")
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Samples of a batch on all ranks together, of steps behind the state; by default as "
        "of its last batch.",
    ),
]


def main(
    export: Traced = None,
    token: TokenPosition = None,
    sequence: SequenceOrdinal = None,
    part: PartName = "train",
    state: StateFile = None,
    step: Step = None,
    rank: Rank = None,
    world_size: WorldSize = 1,
    batch_size: BatchSize = None,
    html: Html = None,
    file: RawFileKey = None,
    row: RowOrdinal = None,
    where: Where = None,
    text: TextFile = None,
    limit: Limit = LIMIT,
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    trust_remote_code: Trust = False,
    json: Json = False,
) -> None:
    """Print the origin of one token, of every segment of one sequence, or of the samples of a step;
    or all that holds documents, and the steps that saw them."""
    asked: dict[str, Any] = {"token": token, "sequence": sequence, "step": step}
    asked |= {"row": row, "where": where, "text": text}
    _check_asked(export, asked, {"state": state, "file": file})
    how: dict[str, Any]
    if state is not None and step is not None:
        training = _open_training(state, export, configs, store, batch_size)
        how = {"rank": rank, "world_size": world_size, "trust_remote_code": trust_remote_code}
        _show_step(step, training, html, how, json=json)
    elif token is None and sequence is None:
        [dataset] = select([export or ""], configs, store)
        how = {"state": state and _read_state(state)}
        how |= {"world_size": world_size, "batch_size": batch_size}
        _show_documents(dataset, file, row, where, text, how, limit=limit, json=json)
    else:
        how = {"part": part, "trust_remote_code": trust_remote_code}
        _show_tokens(export or "", token or 0, sequence, how, json=json)


def _check_asked(export: str | None, asked: dict[str, Any], beside: dict[str, Any]) -> None:
    """Make sure that one thing is asked for, with what belongs to it. Raises: ConfigError."""
    given = [name for name, of in asked.items() if of is not None]
    added = {name for name, of in beside.items() if of is not None}
    belongs = {"row": {"file"}, "step": {"state"}}.get(given[0] if given else "", set())
    may_have = belongs | ({"state"} if given and given[0] in ("row", "where", "text") else set())
    if len(given) == 1 and belongs <= added <= may_have and (export is not None or "step" in given):
        return
    raise ConfigError(
        where="arguments",
        expected="--token N, --sequence N, or --state FILE with --step N; of a dataset --file KEY "
        "with --row N, --where EXPRESSION or --text FILE, and --state FILE where it is wanted",
        found=" and ".join(f"--{of}" for of in [*given, *sorted(added)]) or "none of them",
        remedy="give one of them"
        if export is not None or "step" in given
        else "name the export, or the dataset",
    )


def _read(file: Path, where: str, expected: str) -> bytes:
    """Return the content of a file. Raises: ConfigError."""
    try:
        return file.read_bytes()
    except OSError as error:
        found, remedy = f"{file}: {error.strerror}", "correct the path"
        raise ConfigError(where=where, expected=expected, found=found, remedy=remedy) from None


def _open_training(
    file: Path, export: str | None, configs: Configs, store: StoreName, batch_size: int | None
) -> Training:
    """Return the training that a file has the state of; its exports are those of a dataset's store,
    at a path, or where they were."""
    if export is not None and (configs or export in list_declared()):
        [dataset] = select([export], configs, store)
        export = dataset.store.name
    return Training.of(_read_state(file), export or store, batch_size)


def _read_state(file: Path) -> Any:
    expected = "the file of a loader's state, as JSON"
    content = _read(file, "--state", expected)
    try:
        return json_lines.loads(content)
    except ValueError as error:
        raise ConfigError(
            where="--state",
            expected=expected,
            found=f"{file}: {error}",
            remedy="save it with `json.dumps(loader.state_dict())`",
        ) from None


def _show_step(
    step: int,
    training: Training,
    html: Path | None,
    how: dict[str, Any],
    *,
    json: bool,
) -> None:
    """Print the samples of a step, or write the page that shows them; `how`: as `Training.trace`
    takes it."""
    samples = training.trace(step, **how)
    if html is None:
        if json:
            print_json({"step": step, "samples": samples})
        else:
            print_step(step, training.steps.num_done, samples)
        return
    from tokflow.views.viewer_page import make_step_viewer  # late: few look at a page

    page = make_step_viewer(training, samples, trust_remote_code=how["trust_remote_code"])
    with new_file(html) as temporary:
        temporary.write_bytes(page)
    print(f"viewer: {shown_path(html)}, {size(len(page))}")


def _show_tokens(
    export: str, token: int, sequence: int | None, how: dict[str, Any], *, json: bool
) -> None:
    """Print the origin of a token, or of the segments of a sequence; `how`: as `trace_tokens` takes
    it."""
    stored, start, stop = find_export(export), token, token + 1
    if sequence is not None:
        start, stop = sequence_range(stored, how["part"], sequence)
    origins = trace_tokens(stored, start=start, stop=stop, **how)
    print_json({"part": how["part"], "origins": origins}) if json else print_origins(origins)


def _show_documents(
    dataset: Dataset,
    file: str | None,
    row: int | None,
    where: str | None,
    text: Path | None,
    how: dict[str, Any],
    *,
    limit: int,
    json: bool,
) -> None:
    """Print what holds the documents that are asked for; `how`: about a training."""
    if file is not None and row is not None:
        found = DocumentTraces(1, [trace_document(dataset, file, row, **how)])
    else:
        content = None if text is None else _read(text, "--text", "a file with a text")
        found = trace_documents(dataset, where=where, text=content, limit=limit, **how)
    print_json(found) if json else print_documents(found)

"""`tokflow trace`: the origin of tokens, of an export or of a step of a training, and what holds
documents."""

import json as json_lines
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tokflow.audit.document_trace import (
    LIMIT,
    DocumentTrace,
    DocumentTraces,
    trace_document,
    trace_documents,
)
from tokflow.audit.step_trace import Training
from tokflow.audit.trace import TokenOrigin, sequence_range, trace_tokens
from tokflow.audit.whereabouts import Holder
from tokflow.cli.options import Configs, Html, Json, ProjectFolder, StoreName, Trust, select
from tokflow.cli.terminal import print_json, print_styled, shown_ids, shown_path
from tokflow.errors import ConfigError, shortened
from tokflow.exports.reading import find_export
from tokflow.formatting import counted, size
from tokflow.pipeline.declared import list_declared
from tokflow.store.atomic import new_file

CHARS_SHOWN = 400

SHOWN = 5
"""Rows, sequences and samples that are printed of many."""

CODE_NOTE = (
    "its tokenizer is Python code, so no characters are shown; review that code and add "
    "--trust-remote-code to run it"
)

NORMALISED_NOTE = (
    "the tokenizer normalised a text, and its raw file cannot be read again: characters are those "
    "of the text that its tokens decode to"
)

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
        if export is not None and (configs or export in list_declared()):
            export = select([export], configs, store)[0].store.name
        training = Training.of(_read_state(state), export or store, batch_size)
        how = {"rank": rank, "world_size": world_size, "trust_remote_code": trust_remote_code}
        _show_step(step, training, html, how, json=json)
    elif token is None and sequence is None:
        [dataset] = select([export or ""], configs, store)
        how = {"state": state and _read_state(state)}
        how |= {"world_size": world_size, "batch_size": batch_size}
        if file is not None and row is not None:
            found = DocumentTraces(1, [trace_document(dataset, file, row, **how)])
        else:
            content = None if text is None else _read(text, "--text", "a file with a text")
            found = trace_documents(dataset, where=where, text=content, limit=limit, **how)
        print_json(found) if json else _print_documents(found)
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
    samples, num_done = training.trace(step, **how), training.steps.num_done
    if html is not None:
        from tokflow.views.viewer_page import make_step_viewer  # late: few look at a page

        page = make_step_viewer(training, samples, trust_remote_code=how["trust_remote_code"])
        with new_file(html) as temporary:
            temporary.write_bytes(page)
        print(f"viewer: {shown_path(html)}, {size(len(page))}")
        return
    if json:
        print_json({"step": step, "samples": samples})
        return
    print_styled((f"step {step:,}: {counted(len(samples), 'sample')}", "bold"))
    if step >= num_done:
        print(
            f"note: the state is of {counted(num_done, 'step')}; this one is as the training goes "
            "on with this batch size"
        )
    for of in samples:
        print_styled(f"sample {of.sample:,} on rank {of.rank}: row {of.row:,} of {of.source}")
        for origin in of.origins:
            _print_origin(origin)
    _print_note([origin for of in samples for origin in of.origins])


def _show_tokens(
    export: str, token: int, sequence: int | None, how: dict[str, Any], *, json: bool
) -> None:
    """Print the origin of a token, or of each segment of a sequence; `how`: as `trace_tokens` takes
    it."""
    stored, start, stop = find_export(export), token, token + 1
    if sequence is not None:
        start, stop = sequence_range(stored, how["part"], sequence)
    origins = trace_tokens(stored, start=start, stop=stop, **how)
    if json:
        print_json({"part": how["part"], "origins": origins})
        return
    for origin in origins:
        _print_origin(origin)
    _print_note(origins)


def _print_note(origins: Sequence[TokenOrigin]) -> None:
    if any(origin.token_ids is None for origin in origins):
        print(
            "note: the store it was made in is not here, or has the tokens no more, so no "
            "characters are shown"
        )
    elif any(origin.is_normalised for origin in origins):
        print(f"note: {NORMALISED_NOTE}")
    elif any(origin.text is None for origin in origins):
        print(f"note: {CODE_NOTE}")


def _print_documents(found: DocumentTraces) -> None:
    """Print what holds documents, and the steps of a training that saw them."""
    if found.num_documents > 1:
        print_styled((counted(found.num_documents, "document"), "bold"))
    for document in found.documents:
        _print_document(document)
        if document.seen is None or document.num_steps is None:
            continue
        seen, steps = document.seen, counted(document.num_steps, "step")
        if not seen:
            print_styled(("  not seen", "bold"), f" in the {steps} of the state")
            continue
        epochs = sorted({of.epoch for of in seen if of.epoch is not None})
        of_epochs = f", epochs {', '.join(shortened(epochs, SHOWN))}" if epochs else ""
        num_seen = len({of.step for of in seen})
        samples = (f"  seen in {counted(len(seen), 'sample')}", "bold")
        print_styled(samples, f" of {num_seen:,} of {steps}{of_epochs}")
        for of in seen[:SHOWN]:
            epoch = "" if of.epoch is None else f", epoch {of.epoch:,}"
            place = f"row {of.row:,} of {of.source}"
            print(f"    step {of.step:,}: sample {of.sample:,} on rank {of.rank}{epoch}, {place}")
        if len(seen) > SHOWN:
            print(f"    and {len(seen) - SHOWN:,} more")
    if more := found.num_documents - len(found.documents):
        print(f"and {more:,} more: --limit {found.num_documents} shows all")


def _print_document(found: DocumentTrace) -> None:
    sizes = ""
    if found.num_chars is not None:
        sizes = (
            f"  {counted(found.num_chars, 'character')}, {counted(found.num_tokens or 0, 'token')}"
        )
    print_styled((f"{found.raw_file}:{found.row}", "bold"), sizes)
    if found.record is not None:
        rows = ", ".join(shortened([f"{row:,}" for row in found.rows_of_record], SHOWN))
        print(f"  of record {found.record:,}, of which documents.transform made the rows {rows}")
    for name in [of for of in found.kept if of not in found.values]:
        print_styled((f"  {name}: {found.kept[name]}", "dim"))
    for piece in found.pieces:
        first, num_chars = piece["char_start"], piece["num_chars"]
        place = f"characters {first:,} to {first + num_chars:,}"
        print(f"  {piece['part'] or 'no part'}: {place} ({counted(piece['num_tokens'], 'token')})")
    if found.why_not:
        print_styled(f"  {found.why_not}")
    for name, value in found.values.items():
        print_styled((f"  {name}: {value}", "dim"))
    for part, sequences in found.sequences.items():
        numbers = ", ".join(shortened([f"{of:,}" for of in sequences], SHOWN))
        print_styled((f"  sequences of its raw file in {part}: {numbers}", "dim"))
    for holder in found.exports:
        if holder.tokens or not found.why_not:
            _print_holder(holder)


def _print_holder(holder: Holder) -> None:
    """Print the rows and columns, or the tokens, that an export has of a document."""
    places: dict[str, list[str]] = {}
    for of in holder.tokens:
        copy = f" as {of.raw_file}:{of.row}" if "@" in of.raw_file.partition("/")[0] else ""
        if of.sequence is None or of.column is None:
            last = of.position + of.num_tokens - 1
            place = f"tokens {of.position:,} to {last:,}"
        else:
            last = of.column + of.num_tokens - 1
            place = f"row {of.sequence:,} columns {of.column:,} to {last:,}"
        places.setdefault(f"{of.part}{copy}", []).append(place)
    for part, rows in places.items():
        print_styled(
            (f"  {holder.output}", "cyan"), f" {part}: {', '.join(shortened(rows, SHOWN))}"
        )
    if holder.why_not or not places:
        print_styled((f"  {holder.output}", "cyan"), f": {holder.why_not or 'not in it'}")


def _print_origin(origin: TokenOrigin) -> None:
    """Print where tokens come from, their text or ids, and the columns kept of their document."""
    last = origin.position + origin.num_tokens - 1
    positions = (
        f"{origin.position:,}" if origin.num_tokens == 1 else f"{origin.position:,}-{last:,}"
    )
    record = f" (record {origin.record:,})" if origin.record is not None else ""
    document = (f"{origin.raw_file}:{origin.row}{record}", "bold")
    tokens = f"({counted(origin.num_tokens, 'token')} at {positions})"
    if origin.text is None:
        first = origin.token_in_text
        stop = first + origin.num_tokens
        print_styled(document, f"  tokens {first:,} to {stop:,} of its text  {tokens}")
        if origin.token_ids is not None:
            print(f"  {shown_ids(origin.token_ids)}")
    elif not origin.text:
        print_styled(document, f"  no character, at {origin.char_start:,}  {tokens}")
        print(f"  {' '.join(origin.added)}")
    else:
        place = f"characters {origin.char_start:,} to {origin.char_stop:,}"
        print_styled(document, f"  {place}  {tokens}")
        more = len(origin.text) - CHARS_SHOWN
        print(f"  {origin.text[:CHARS_SHOWN]!r}" + (f" and {more:,} more" if more > 0 else ""))
    for name, value in origin.kept.items():
        if value is not None:
            print_styled((f"  {name}: {value}", "dim"))

"""`tokflow trace`: the origin of tokens of an export."""

from typing import Annotated

import typer

from tokflow.audit.trace import (
    DocumentTrace,
    TokenOrigin,
    sequence_range,
    trace_document,
    trace_tokens,
)
from tokflow.cli.options import Configs, Export, Json, ProjectFolder, StoreName, Trust
from tokflow.cli.selection import select
from tokflow.cli.terminal import print_json, print_styled, shown_ids
from tokflow.errors import ConfigError
from tokflow.exports.reading import find_export
from tokflow.shown import counted

CHARS_SHOWN = 400

CODE_NOTE = (
    "its tokenizer is Python code, so no characters are shown; review that code and add "
    "--trust-remote-code to run it"
)

NORMALISED_NOTE = (
    "the tokenizer normalised a text, and its raw file cannot be read again: characters are those "
    "of the text that its tokens decode to"
)


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


def main(
    export: Export,
    token: TokenPosition = None,
    sequence: SequenceOrdinal = None,
    part: PartName = "train",
    file: RawFileKey = None,
    row: RowOrdinal = None,
    configs: Configs = None,
    project: ProjectFolder = None,
    store: StoreName = None,
    trust_remote_code: Trust = False,
    json: Json = False,
) -> None:
    """Print the origin of one token, or of every segment of one sequence; or what became of one
    document of a raw file."""
    asked = {"token": token, "sequence": sequence, "row": row}
    given = [name for name, of in asked.items() if of is not None]
    if len(given) != 1 or (file is None) != (row is None):
        raise ConfigError(
            where="arguments",
            expected="--token N, --sequence N, or --file KEY with --row N",
            found=" and ".join(f"--{of}" for of in given + ["file"] * bool(file)) or "none of them",
            remedy="give one of them",
        )
    if file is not None and row is not None:
        [dataset] = select([export], configs, store)
        found_document = trace_document(dataset, file, row)
        print_json(found_document) if json else _print_document(found_document)
        return
    found = find_export(export)
    if token is not None:
        start, stop = token, token + 1
    else:
        start, stop = sequence_range(found, part, sequence or 0)
    origins = trace_tokens(
        found, part=part, start=start, stop=stop, trust_remote_code=trust_remote_code
    )
    if json:
        print_json({"part": part, "origins": origins})
    else:
        for origin in origins:
            _print(origin)
            for name, value in origin.kept.items():
                if value is not None:
                    print_styled((f"  {name}: {value}", "dim"))
        if any(origin.token_ids is None for origin in origins):
            print(
                "note: the store it was made in is not here, or has the tokens no more, so no "
                "characters are shown"
            )
        elif any(origin.is_normalised for origin in origins):
            print(f"note: {NORMALISED_NOTE}")
        elif any(origin.text is None for origin in origins):
            print(f"note: {CODE_NOTE}")


def _print_document(found: DocumentTrace) -> None:
    print_styled((f"{found.raw_file}:{found.row}", "bold"))
    for piece in found.pieces:
        first, num_chars = piece["char_start"], piece["num_chars"]
        place = f"characters {first:,} to {first + num_chars:,}"
        print(f"  {piece['part'] or 'no part'}: {place} ({counted(piece['num_tokens'], 'token')})")
    if found.why_not:
        print_styled(f"  {found.why_not}")
    for name, value in found.values.items():
        print_styled((f"  {name}: {value}", "dim"))


def _print(origin: TokenOrigin) -> None:
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
        return
    if not origin.text:
        print_styled(document, f"  no character, at {origin.char_start:,}  {tokens}")
        print(f"  {' '.join(origin.added)}")
        return
    print_styled(document, f"  characters {origin.char_start:,} to {origin.char_stop:,}  {tokens}")
    shown = origin.text[:CHARS_SHOWN]
    more = len(origin.text) - len(shown)
    print(f"  {shown!r}" + (f" and {more:,} more" if more else ""))

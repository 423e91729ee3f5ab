"""What `tokflow trace` prints of tokens, samples and documents."""

from collections.abc import Sequence

from tokflow.audit.document_trace import DocumentTrace, DocumentTraces
from tokflow.audit.holders import Holder
from tokflow.audit.step_trace import SampleTrace, Sighting
from tokflow.audit.trace import TokenOrigin
from tokflow.cli.terminal import print_styled, shown_ids
from tokflow.errors import shortened
from tokflow.shown import counted

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


def print_origins(origins: Sequence[TokenOrigin]) -> None:
    """Print where tokens come from, and a note where characters are not known."""
    for origin in origins:
        _print_origin(origin)
    _print_note(origins)


def print_step(step: int, num_done: int, samples: Sequence[SampleTrace]) -> None:
    """Print the samples of a step of a training with their documents."""
    print_styled((f"step {step:,}: {counted(len(samples), 'sample')}", "bold"))
    if step >= num_done:
        print(
            f"note: the state is of {counted(num_done, 'step')}; this one is as the training goes "
            "on with this batch size"
        )
    for sample in samples:
        print_styled(
            f"sample {sample.sample:,} on rank {sample.rank}: row {sample.row:,} of {sample.source}"
        )
        for origin in sample.origins:
            _print_origin(origin)
    _print_note([origin for sample in samples for origin in sample.origins])


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


def print_documents(found: DocumentTraces) -> None:
    """Print what holds documents, and the steps of a training that saw them."""
    if found.num_documents > 1:
        print_styled((counted(found.num_documents, "document"), "bold"))
    for document in found.documents:
        _print_document(document)
        if document.seen is not None and document.num_steps is not None:
            _print_sightings(document.seen, document.num_steps)
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


def _print_sightings(seen: Sequence[Sighting], num_steps: int) -> None:
    """Print in how many samples a training has seen a document, and the first of them."""
    if not seen:
        print_styled(("  not seen", "bold"), f" in the {counted(num_steps, 'step')} of the state")
        return
    epochs = sorted({of.epoch for of in seen if of.epoch is not None})
    of_epochs = f", epochs {', '.join(shortened(epochs, SHOWN))}" if epochs else ""
    num_seen = len({of.step for of in seen})
    print_styled(
        (f"  seen in {counted(len(seen), 'sample')}", "bold"),
        f" of {num_seen:,} of {counted(num_steps, 'step')}{of_epochs}",
    )
    for of in seen[:SHOWN]:
        epoch = "" if of.epoch is None else f", epoch {of.epoch:,}"
        place = f"row {of.row:,} of {of.source}"
        print(f"    step {of.step:,}: sample {of.sample:,} on rank {of.rank}{epoch}, {place}")
    if more := len(seen) - len(seen[:SHOWN]):
        print(f"    and {more:,} more")


def _print_origin(origin: TokenOrigin) -> None:
    _print_text(origin)
    for name, value in origin.kept.items():
        if value is not None:
            print_styled((f"  {name}: {value}", "dim"))


def _print_text(origin: TokenOrigin) -> None:
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

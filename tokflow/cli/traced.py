"""What `tokflow trace` prints of tokens, samples and documents."""

from collections.abc import Sequence

from tokflow.audit.step_trace import SampleTrace
from tokflow.audit.trace import DocumentTrace, TokenOrigin
from tokflow.cli.terminal import print_styled, shown_ids
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


def print_document(found: DocumentTrace) -> None:
    """Print what became of a document."""
    print_styled((f"{found.raw_file}:{found.row}", "bold"))
    for piece in found.pieces:
        first, num_chars = piece["char_start"], piece["num_chars"]
        place = f"characters {first:,} to {first + num_chars:,}"
        print(f"  {piece['part'] or 'no part'}: {place} ({counted(piece['num_tokens'], 'token')})")
    if found.why_not:
        print_styled(f"  {found.why_not}")
    for name, value in found.values.items():
        print_styled((f"  {name}: {value}", "dim"))


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

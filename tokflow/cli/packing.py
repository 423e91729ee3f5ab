"""What packing made of a part, in words."""

from collections.abc import Mapping

from tokflow.cli.output import counted

WORDS = {
    "num_padding": ("token", "of padding"),
    "num_cut_documents": ("document", "cut"),
    "num_truncated_documents": ("document", "truncated"),
    "num_dropped_documents": ("document", "dropped"),
    "num_dropped_tokens": ("token", "dropped"),
    "num_repeated_tokens": ("token", "repeated"),
}


def described_rows(counts: Mapping[str, int], part: str) -> str:
    """Return `12 sequences (98.4 % full, 31 tokens of padding, 2 documents cut)`.

    What is 0 is not said. The percentage is rounded down: rows with padding are never 100 % full.
    """
    sequences = counted(counts[f"{part}.num_sequences"], "sequence")
    said = []
    if num_slots := counts[f"{part}.num_tokens"] + counts[f"{part}.num_padding"]:
        permille = counts[f"{part}.num_tokens"] * 1_000 // num_slots
        said.append(f"{permille / 10:.1f} % full".replace(".0 ", " "))
    for name, (noun, what) in WORDS.items():
        if num := counts.get(f"{part}.{name}"):
            said.append(f"{counted(num, noun)} {what}")
    return f"{sequences} ({', '.join(said)})" if said else sequences


def described_tokens(counts: Mapping[str, int], part: str) -> str:
    """Return `72 tokens` of a stream, and of rows `72 tokens in 9 sequences (...)`."""
    tokens = counted(counts[f"{part}.num_tokens"], "token")
    is_rows = f"{part}.num_sequences" in counts
    return f"{tokens} in {described_rows(counts, part)}" if is_rows else tokens

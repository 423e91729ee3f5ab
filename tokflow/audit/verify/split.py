"""Is a split what it says it is."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.audit.verify.problems import too_large, unequal
from tokflow.split.cut_tokens import CUT_TOKENS_NAME
from tokflow.split.spans import SPANS_NAME, SPANS_SCHEMA, Split
from tokflow.store.arrow import to_numpy
from tokflow.store.tables import read_part
from tokflow.tokens.document_table import DOCUMENTS_SCHEMA


def verify_split(split: Split) -> list[str]:
    """Return what is wrong with a split.

    Every document of the shard is in one part or in none: whole, or cut into pieces that do not
    overlap. The counts of all parts and of what no part takes add up to the shard's documents,
    characters and tokens.
    """
    columns = _spans(split)
    documents = split.shard.documents(DOCUMENTS_SCHEMA.names[:-1])
    table = {name: to_numpy(documents[name]) for name in documents.schema.names}
    last = columns["document"] + columns["num_documents"]
    if len(last) and (columns["document"].min() < 0 or last.max() > len(table["row"])):
        return [f"{split.folder / SPANS_NAME}: expected documents of the shard, found others"]
    return [
        *_span_problems(split, columns, table),
        *_coverage_problems(split, columns, table),
        *_cut_problems(split, columns),
    ]


def _spans(split: Split) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of all spans; `part` is the ordinal of the part in the config."""
    names = SPANS_SCHEMA.names[1:]
    of_parts = [read_part(split.folder / SPANS_NAME, part, names) for part in split.parts]
    sizes = [len(columns["document"]) for columns in of_parts]
    return {
        "part": np.repeat(np.arange(len(sizes)), sizes),
        **{name: np.concatenate([columns[name] for columns in of_parts]) for name in names},
    }


def _span_problems(
    split: Split, columns: dict[str, Any], table: dict[str, npt.NDArray[np.int64]]
) -> Iterator[str]:
    """Compare the spans' sums with the shard's documents, and the counts with the spans."""
    where = split.folder / SPANS_NAME
    is_whole = ~columns["is_cut"]
    first = columns["document"][is_whole]
    last = first + columns["num_documents"][is_whole]
    for name in ("num_tokens", "num_chars"):
        before = np.concatenate([[0], np.cumsum(table[name])])
        wrong = np.flatnonzero(columns[name][is_whole] != before[last] - before[first])
        if len(wrong):
            yield f"{where}: the span of document {first[wrong[0]]:,}: {name} is not its documents'"
    if (columns["token_start"][is_whole] != table["token_offset"][first]).any():
        yield f"{where}: expected each span to begin at its first document's token"
    counts = split.manifest.counts
    for ordinal, part in enumerate(split.parts):
        is_in = columns["part"] == ordinal
        yield from unequal(
            f"{split.folder}: {part}",
            num_documents=(
                counts[f"{part}.num_documents"],
                int(columns["num_documents"][is_in & is_whole].sum()),
            ),
            num_cut_pieces=(
                counts[f"{part}.num_cut_pieces"],
                int(np.count_nonzero(is_in & ~is_whole)),
            ),
            num_chars=(counts[f"{part}.num_chars"], int(columns["num_chars"][is_in].sum())),
            num_tokens=(counts[f"{part}.num_tokens"], int(columns["num_tokens"][is_in].sum())),
        )


def _coverage_problems(
    split: Split, columns: dict[str, Any], table: dict[str, npt.NDArray[np.int64]]
) -> Iterator[str]:
    """Check that no text is in two parts, and that what is in none is what the counts say."""
    num_documents = len(table["row"])
    is_whole = ~columns["is_cut"]
    edges = np.zeros(num_documents + 1, dtype=np.int64)
    np.add.at(edges, columns["document"][is_whole], 1)
    np.add.at(edges, (columns["document"] + columns["num_documents"])[is_whole], -1)
    taken = np.cumsum(edges)[:num_documents]
    cut = columns["document"][~is_whole]
    starts, sizes = columns["char_start"][~is_whole], columns["num_chars"][~is_whole]
    order = np.lexsort((starts, cut))
    cut, starts, sizes = cut[order], starts[order], sizes[order]
    overlaps = (cut[1:] == cut[:-1]) & (starts[1:] < (starts + sizes)[:-1])
    outside = (starts + sizes > table["num_chars"][cut]) | (taken[cut] > 0)
    twice = np.concatenate([np.flatnonzero(taken > 1), cut[1:][overlaps], cut[outside]])
    if len(twice):
        yield (
            f"{split.folder / SPANS_NAME}: document {int(twice[0]):,}: expected each character "
            "in at most one part, found one in two"
        )
    is_cut = np.zeros(num_documents, dtype=bool)
    is_cut[cut] = True
    is_free = (taken == 0) & ~is_cut
    counts, shard = split.manifest.counts, split.shard.manifest.counts
    free_tokens = counts["no_part.num_tokens"]
    if not counts["no_part.num_cut_pieces"]:  # else those of cut pieces are among them
        free_tokens = int(table["num_tokens"][is_free].sum())
    yield from unequal(
        f"{split.folder}: no part",
        num_documents=(counts["no_part.num_documents"], int(is_free.sum())),
        num_tokens=(counts["no_part.num_tokens"], free_tokens),
    )
    total = sum(counts[f"{name}.num_chars"] for name in (*split.parts, "no_part"))
    yield from unequal(
        f"{split.folder}: all parts and no part together",
        num_chars=(shard["num_chars"], total),
    )


def _cut_problems(split: Split, columns: dict[str, Any]) -> Iterator[str]:
    """Check the tokens of cut pieces, which lie behind the end of tokens.bin."""
    cut_tokens = split.token_source().cut
    num_shard = split.shard.num_tokens
    is_cut = columns["is_cut"]
    lengths = columns["num_tokens"][is_cut]
    order = np.argsort(columns["token_start"][is_cut], kind="stable")
    starts, lengths = columns["token_start"][is_cut][order], lengths[order]
    where = split.folder / CUT_TOKENS_NAME
    yield from unequal(where, num_tokens=(int(lengths.sum()), len(cut_tokens)))
    if (starts != num_shard + np.cumsum(lengths) - lengths).any():
        yield f"{where}: expected the tokens of cut pieces end to end"
    yield from too_large(where, cut_tokens, split.shard.manifest.details["vocab_size"])

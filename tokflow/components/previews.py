"""Previews of tokens and sequences: their first documents and rows, decoded for people."""

from collections.abc import Mapping
from typing import Any

import dagster as dg
import numpy.typing as npt

from tokflow.audit.inspection import visible
from tokflow.components.markdown import code_block, rows_table, shortened_to
from tokflow.exports import Part
from tokflow.store.arrow import read_first
from tokflow.tokenizers.engines import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.writer import DOCUMENTS_NAME

PREVIEW_TOKENS = 256
"""Tokens of a file, or of a part, that are decoded for a person to see what a model will."""

PREVIEW_ROWS = 5
"""Documents of a file, or sequences of a part, that a table shows."""

TEXT_TOKENS, TEXT_WIDTH = 16, 24
"""Tokens of a row that are decoded, and characters of them that are shown."""

Metadata = Mapping[str, dg.MetadataValue[Any]]


def preview_of_shard(shard: TokenShard, tokenizer: Tokenizer) -> Metadata:
    """Return the first tokens of a file as text, and its first documents as a table."""
    tokens, table = shard.tokens(is_lazy=True), shard.stored.file(shard.names(DOCUMENTS_NAME)[0])
    first = read_first(table, ["row", "token_offset", "num_tokens"], PREVIEW_ROWS)
    rows = []
    for of in first.to_pylist():
        start, num_tokens = of["token_offset"], of["num_tokens"]
        few = tokens.read(start, start + min(num_tokens, TEXT_TOKENS))
        rows.append({"row": of["row"], "num_tokens": num_tokens, "text": _start(few, tokenizer)})
    text = _decoded(tokens.read(0, PREVIEW_TOKENS), tokenizer)
    return {"preview": _as_code(text), **({"documents": rows_table(rows)} if rows else {})}


def preview_of_part(part: Part, tokenizer: Tokenizer) -> Metadata:
    """Return the beginning of the part's first sequence and a table of its first sequences or, of a
    stream, its first tokens."""
    if not part.packed.files:
        batch = next((batch for batch in part.stream() if len(batch)), None)
        return {"preview": _as_code(_decoded(batch, tokenizer))}
    sequences = next(part.sequences(PREVIEW_ROWS), None)
    if sequences is None or len(sequences) == 0:
        return {"preview": _as_code("")}
    rows: list[dict[str, Any]] = []
    shown = zip(sequences.token_ids, sequences.segment_ids, strict=True)
    for number, (token_ids, segment_ids) in enumerate(shown):
        rows.append(
            {
                "sequence": number,
                "num_segments": int(segment_ids.max()),
                "text": _start(token_ids[segment_ids > 0][:TEXT_TOKENS], tokenizer),
            }
        )
    first = sequences.token_ids[0][sequences.segment_ids[0] > 0]
    return {"preview": _as_code(_decoded(first, tokenizer)), "sequences": rows_table(rows)}


def _start(token_ids: npt.NDArray[Any], tokenizer: Tokenizer) -> str:
    """Return how a text begins, on one line."""
    text = visible(" ".join(_decoded(token_ids, tokenizer).split()))
    return shortened_to(text, TEXT_WIDTH)


def _decoded(token_ids: npt.NDArray[Any] | None, tokenizer: Tokenizer) -> str:
    """Return the text of the first tokens, in which BOS and EOS show where documents meet."""
    first = [] if token_ids is None else token_ids[:PREVIEW_TOKENS].tolist()
    if first and max(first) >= tokenizer.vocab_size:
        return "(damaged: an id is not below vocab_size)"  # a check says where
    return open_reference(tokenizer).decode(first) if first else ""


def _as_code(text: str) -> dg.MarkdownMetadataValue:
    return code_block(text) if text else dg.MetadataValue.md("*no text*")

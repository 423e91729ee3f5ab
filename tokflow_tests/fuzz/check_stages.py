"""Compare token shards and splits with the model."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import xxhash

from tokflow_tests.fuzz.difference import same
from tokflow_tests.fuzz.model import NO_PART, Documents, Pieces
from tokflow_tests.fuzz.references import Reference


def dtype_of(reference: Reference) -> str:
    """Return the dtype of token ids, by the largest."""
    return "<u2" if reference.vocab_size <= 65_536 else "<u4"


def check_tokens(
    made: Any, documents: Documents, encode: Callable[[str], tuple[int, ...]], reference: Reference
) -> None:
    """Compare the token shard of one file: documents, rejects, tokens and counts."""
    where, folder = f"tokens of {made.output.name}", made.output.folder
    rows = [row for row, _ in documents.accepted]
    texts = [text for _, text in documents.accepted]
    tokens = [encode(text) for text in texts]
    table = pq.read_table(folder / "documents.parquet").to_pydict()
    same(f"{where}: rows", expected=rows, found=table["row"])
    lengths = list(map(len, texts))
    sizes = list(map(len, tokens))
    flat = np.fromfile(folder / "tokens.bin", dtype=dtype_of(reference)).tolist()
    for row, text, ids, start in zip(rows, texts, tokens, table["token_offset"], strict=True):
        found = flat[start : start + len(ids)]
        same(f"{where}: row {row}: {text!r}", expected=list(ids), found=found)
    same(f"{where}: tokens", expected=[t for ids in tokens for t in ids], found=flat)
    same(f"{where}: num_chars", expected=lengths, found=table["num_chars"])
    same(f"{where}: char_offset", expected=_before(lengths), found=table["char_offset"])
    same(f"{where}: num_tokens", expected=sizes, found=table["num_tokens"])
    same(f"{where}: token_offset", expected=_before(sizes), found=table["token_offset"])
    hashes = [xxhash.xxh3_128_digest(text.encode()) for text in texts]
    same(f"{where}: text_hash", expected=hashes, found=table["text_hash"])
    rejects = folder / "rejects.jsonl"
    lines = rejects.read_text().splitlines() if rejects.is_file() else []
    rejected = [json.loads(line)["row"] for line in lines]
    same(f"{where}: rejects", expected=list(documents.rejected), found=rejected)
    if documents.records:
        same(f"{where}: records", expected=list(documents.records), found=table["record"])
    has_transform = "num_records" in made.manifest.counts
    of_records = ("num_records", "num_left_out") if has_transform else ()
    expected = {
        **{name: getattr(documents, name) for name in of_records},
        "num_documents": len(rows),
        "num_rejects": len(documents.rejected),
        "num_empty_documents": texts.count(""),
        "num_chars": sum(lengths),
        "num_bytes": sum(len(text.encode()) for text in texts),
        "num_tokens": sum(sizes),
        "num_special_tokens_in_text": sum(  # of which none is part of another
            text.count(name) for text in texts for name in reference.special_tokens
        ),
    }
    counts = made.manifest.counts
    same(f"{where}: counts", expected=expected, found={name: counts[name] for name in expected})


def _before(sizes: list[int]) -> list[int]:
    return [sum(sizes[:number]) for number in range(len(sizes))]


def assigned_parts(
    outputs: Mapping[tuple[str, str], Any], documents: Mapping[str, Documents]
) -> dict[tuple[str, int], str]:
    """Return the part of each document as the splits have them, by raw file and row."""
    assigned = {
        (key, row): NO_PART for key, found in documents.items() for row, _ in found.accepted
    }
    for key, found in documents.items():
        path = outputs["split", key].output.folder / "spans.parquet"
        for span in pq.read_table(path).to_pylist():
            for number in range(span["document"], span["document"] + span["num_documents"]):
                before = assigned[key, found.accepted[number][0]]
                same(f"{key}: part of document {number}", expected=NO_PART, found=before)
                assigned[key, found.accepted[number][0]] = span["part"]
    return assigned


def check_split(made: Any, pieces: Pieces, key: str) -> None:
    """Compare what the split of a file counts in each part."""
    expected: dict[str, int] = {}
    for part, of_files in pieces.items():
        some = of_files[key]
        expected[f"{part}.num_documents"] = sum(not piece.is_cut for piece in some)
        expected[f"{part}.num_cut_pieces"] = sum(piece.is_cut for piece in some)
        expected[f"{part}.num_chars"] = sum(len(piece.text) for piece in some)
        sizes = [len(piece.tokens) for piece in some]
        expected[f"{part}.num_tokens"] = sum(sizes)
        expected[f"{part}.num_tokens_of_longest"] = max(sizes, default=0)
    counts = dict(made.manifest.counts)
    has_mask = any(name.endswith(".num_loss_tokens") for name in counts)
    for part, of_files in pieces.items() if has_mask else ():
        expected[f"{part}.num_loss_tokens"] = sum(sum(piece.mask) for piece in of_files[key])
    found = {name: of for name, of in counts.items() if name in expected or not has_mask}
    same(f"split of {key}: counts", expected=expected, found=found)

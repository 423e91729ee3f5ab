"""Compare what `tokflow trace` says of some tokens, and of documents, with the texts themselves."""

from collections.abc import Sequence
from dataclasses import astuple
from itertools import chain
from random import Random
from typing import Any

from tokflow.audit.document_trace import trace_document
from tokflow.audit.trace import trace_tokens
from tokflow.pipeline.dataset import Dataset
from tokflow_tests.fuzz.check_export import CheckedExport
from tokflow_tests.fuzz.difference import same
from tokflow_tests.fuzz.model import NONE, Piece, Pieces

TRACES = 2
"""Of each export."""


def check_traces(export: CheckedExport, random: Random) -> int:
    """Trace a few stretches of tokens; return how many."""
    parts = [part for part, runs in export.runs.items() if runs]
    for _ in range(TRACES if parts else 0):
        part = random.choice(parts)
        run = random.choice(export.runs[part])
        start = run.position + random.randrange(run.num_tokens)
        stop = start + random.choice((1, 1, 2, 7, 40))
        _check(export, part, start, stop)
    return TRACES if parts else 0


def check_document(dataset: Dataset, export: CheckedExport, pieces: Pieces, random: Random) -> int:
    """Trace one document to the rows of an export, or to a reason; return how many."""
    each = [(part, of) for part, files in pieces.items() for some in files.values() for of in some]
    if not each:
        return 0
    chosen = random.choice(each)[1]
    document = chosen.file, chosen.row
    found = trace_document(dataset, *document)
    name = f"{dataset.name}/exports/{export.made.folder.parent.name}"
    [holder] = [of for of in found.exports if of.output == name]
    runs = [
        (part, *run)
        for part, of_part in export.runs.items()
        for run in of_part
        if (run.raw_file, run.row) == document
    ]
    where = f"trace of {document} to {name}"
    same(where, expected=sorted(runs), found=sorted(astuple(of)[:7] for of in holder.tokens))
    own = [(part, of) for part, of in each if (of.file, of.row) == document and part not in NONE]
    lost = False
    for part, piece in own:
        places = [run for run in runs if run[0] == part and run[5] == piece.char_start]
        there = {at for run in places for at in range(run[6], run[6] + run[2])}
        lost |= len(there) < len(piece.tokens)
    same(f"{where}: a reason", expected=lost or not own, found=holder.why_not is not None)
    same(f"{where}: of no part", expected=not own, found=found.why_not is not None)
    return 1


def _check(export: CheckedExport, part: str, start: int, stop: int) -> None:
    found = trace_tokens(export.made.folder, part=part, start=start, stop=stop)
    touched = [
        run
        for run in export.runs[part]
        if run.position < stop and start < run.position + run.num_tokens
    ]
    where = f"trace of {export.made.folder.parent.name}, {part}, {start} to {stop}"
    same(f"{where}: documents", expected=len(touched), found=len(found))
    for run, origin in zip(touched, found, strict=True):
        begin, end = max(start, run.position), min(stop, run.position + run.num_tokens)
        pieces = chain.from_iterable(export.made.parts[part].values())
        piece = next(piece for piece in pieces if run.is_of(piece))
        first = run.token_in_piece + begin - run.position
        last = first + end - begin
        is_text = _of_text(export, piece)
        char_start, char_stop = _characters(export, piece, is_text, first, last)
        expected: dict[str, Any] = {
            "position": begin,
            "num_tokens": end - begin,
            "raw_file": piece.file,
            "row": piece.row,
            "token_in_text": first,
            "token_ids": piece.tokens[first:last],
        }
        # Of two equal ids at the ends, one of which is added, the tokens do not tell which.
        if piece.tokens[0] != piece.tokens[-1] or is_text[0] == is_text[-1]:
            expected |= {
                "char_start": piece.char_start + char_start,
                "char_stop": piece.char_start + char_stop,
                "text": piece.text[char_start:char_stop],
            }
        same(where, expected=expected, found={name: getattr(origin, name) for name in expected})


def _of_text(export: CheckedExport, piece: Piece) -> list[bool]:
    """Return which tokens of a piece are of its text, and no BOS or EOS that was added."""
    reference, config = export.made.reference, export.made.config
    ids = list(piece.tokens)
    spelt = reference.encode(
        piece.text, is_control=config.get("special_tokens_in_text") == "control"
    )
    is_text = [True] * len(ids)
    if len(ids) > len(spelt) and config.get("bos") == "first" and ids[1 : 1 + len(spelt)] == spelt:
        is_text[0] = False
    if len(ids) - is_text.count(False) > len(spelt):
        is_text[-1] = False
    return is_text


def _characters(
    export: CheckedExport, piece: Piece, is_text: Sequence[bool], first: int, last: int
) -> tuple[int, int]:
    """Return the characters that tokens of a piece touch; BOS and EOS stand for none."""
    reference = export.made.reference
    sizes = [
        len(reference.bytes_of(token)) if is_some else 0
        for token, is_some in zip(piece.tokens, is_text, strict=True)
    ]
    begin, end = sum(sizes[:first]), sum(sizes[:last])
    char_of_byte = [n for n, char in enumerate(piece.text) for _ in char.encode()]
    char_of_byte.append(len(piece.text))
    return char_of_byte[begin], char_of_byte[end - 1] + 1 if end > begin else char_of_byte[begin]

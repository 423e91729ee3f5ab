"""Verify a token shard and the tokenizer that made it; problems that other outputs have, too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.errors import TokflowError, UntrustedCodeError
from tokflow.store.tables import to_numpy, to_texts
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer, check_content
from tokflow.tokens import TokenSource, shard_files
from tokflow.tokens.shard import TokenShard

TOKENS_AT_ONCE = 1_000_000
"""Token ids looked at together, so that memory does not grow with the output."""


def verify_tokens(shard: TokenShard) -> list[str]:
    """Return what is wrong with a token shard.

    Compares documents.parquet, tokens.bin and rejects.jsonl with each other and with the counts:
    offsets contiguous from 0, rows ascending and, together with the rejects, without a gap, ids
    below vocab_size, BOS and EOS where each document begins and ends, as many EOS as there are
    documents and as the counts say were in the texts, a loss mask of 0 and 1, as many values of the
    columns that are kept as documents. Where tokens.bin was dropped, only the others.
    """
    names = shard_files.DOCUMENTS_SCHEMA.names[:-1]
    table = shard.documents(names)
    columns = {name: to_numpy(table[name]) for name in names}
    problems = [
        *_document_problems(shard, columns),
        *_row_problems(shard, columns["row"]),
        *_kept_problems(shard),
    ]
    if not shard.manifest.dropped:
        problems += _id_problems(shard, columns["token_offset"], columns["num_tokens"])
        problems += _eos_problems(shard)
        problems += _mask_problems(shard) if shard.has_loss_mask else []
    return problems


def _path_of(shard: TokenShard, name: str) -> Path:
    """Return the file of a shard that is called `name`; its folder where segments have one each."""
    names = shard.names(name)
    return shard.folder / names[0] if len(names) == 1 else shard.folder


def _document_problems(
    shard: TokenShard, columns: dict[str, npt.NDArray[np.int64]]
) -> Iterator[str]:
    where = _path_of(shard, shard_files.DOCUMENTS_NAME)
    found = {
        "num_documents": len(columns["row"]),
        **{of: int(columns[of].sum()) for of in ("num_chars", "num_bytes", "num_tokens")},
        "num_empty_documents": int(np.count_nonzero(columns["num_chars"] == 0)),
    }
    counts = shard.manifest.counts
    yield from unequal(where, **{name: (counts[name], num) for name, num in found.items()})
    for offset, size in (("char_offset", "num_chars"), ("token_offset", "num_tokens")):
        expected = np.cumsum(columns[size]) - columns[size]
        if len(wrong := np.flatnonzero(columns[offset] != expected)):
            first = int(wrong[0])
            yield (
                f"{where}: document {first:,}: expected {offset} {expected[first]:,}, "
                f"found {columns[offset][first]:,} ({len(wrong):,} such)"
            )


def _row_problems(shard: TokenShard, rows: npt.NDArray[np.int64]) -> Iterator[str]:
    if len(wrong := np.flatnonzero(np.diff(rows) <= 0)):
        first, where = int(wrong[0]), _path_of(shard, shard_files.DOCUMENTS_NAME)
        expected = f"expected a row above {rows[first]:,}, found {rows[first + 1]:,}"
        yield f"{where}: document {first + 1:,}: {expected}"
        return
    num_rejects = shard.manifest.counts["num_rejects"]
    path, origins = shard.folder / shard_files.REJECTS_NAME, shard.origins
    lines = path.read_bytes() if path.is_file() else b""
    rejects = shard_files.rejects_in(lines, origins.raw_files[0])
    if len(rejects) != num_rejects:
        yield f"{path}: expected {num_rejects:,} rejects, found {len(rejects):,}"
        return
    of_shard = [origins.row_of(reject["raw_file"], reject["row"]) for reject in rejects]
    rejected = np.array(of_shard, dtype=np.int64)
    taken = np.sort(np.concatenate([rows, rejected]))
    if "num_left_out" in shard.manifest.counts:
        yield from _left_out_problems(shard, taken)
    elif len(wrong := np.flatnonzero(taken != np.arange(len(taken)))):
        yield (
            f"{shard.folder}: expected every row of the raw file once, as a document or a "
            f"reject; found row {taken[wrong[0]]:,} where {wrong[0]:,} should be"
        )


def _left_out_problems(shard: TokenShard, taken: npt.NDArray[np.int64]) -> Iterator[str]:
    """Yield what does not add up where a transform has left records out, whose rows are the gaps
    between those that are `taken` by documents and rejects."""
    counts = shard.manifest.counts
    num_rows = len(taken) + counts["num_left_out"]
    if len(taken) and (np.diff(taken).min(initial=1) < 1 or taken[-1] >= num_rows):
        yield (
            f"{shard.folder}: expected {num_rows:,} rows, each once a document, a reject or left "
            f"out; found one twice, or row {taken[-1]:,}"
        )
    table = shard.documents(["row", "record"])
    rows, records = to_numpy(table["row"]), to_numpy(table["record"])
    first = np.array(shard.origins.first_rows, dtype=np.int64)
    is_other_file = np.diff(np.searchsorted(first, rows, side="right"), prepend=0) != 0
    step = np.diff(records, prepend=-1)
    where = _path_of(shard, shard_files.DOCUMENTS_NAME)
    if len(wrong := np.flatnonzero((step < 0) & ~is_other_file)):
        yield f"{where}: document {wrong[0]:,}: expected no record before that of the last document"
    num_records = int(np.count_nonzero((step != 0) | is_other_file))
    num_records += len(taken) - len(rows) + counts["num_left_out"]
    yield from unequal(where, num_records=(counts["num_records"], num_records))


def _id_problems(
    shard: TokenShard, starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> Iterator[str]:
    details, tokens = shard.manifest.details, shard.tokens()
    where = _path_of(shard, shard_files.TOKENS_NAME)
    yield from too_large(where, tokens, details["vocab_size"])
    ends, is_ended = starts + counts, (counts > 0) | _ends_empty(shard)
    if len(ends) and (ends.max() > len(tokens) or counts.min() < 0):
        return  # said already by the offsets
    for role, wanted, position in (
        ("EOS", details["eos_id"], ends - 1),
        ("BOS", details["bos_id"], starts),
    ):
        if wanted is None:
            continue
        has_it = counts > 0
        if role == "EOS" and shard.has_loss_mask:  # a chat may end with EOS and white space
            has_it = _is_within(tokens, wanted, starts, ends)
        else:
            found = tokens.take(position[has_it], np.ones_like(position[has_it]))
            has_it[has_it] = found == wanted
        if len(wrong := np.flatnonzero(is_ended & ~has_it)):
            yield (
                f"{where}: document {wrong[0]:,}: expected the {role} id {wanted:,} "
                f"{'at its end' if role == 'EOS' else 'first'} ({len(wrong):,} such)"
            )


def _is_within(
    tokens: TokenSource,
    token_id: int,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Return, for each document, whether it has the token id anywhere."""
    has_it = np.zeros(len(starts), dtype=bool)
    for first, batch in _batches(tokens):
        found = first + np.flatnonzero(batch == token_id)
        here = np.flatnonzero((starts < first + len(batch)) & (first < ends))
        has_it[here] |= np.searchsorted(found, starts[here]) < np.searchsorted(found, ends[here])
    return has_it


def _batches(source: TokenSource) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield all tokens, some at a time, with the position of the first; memory is given back."""
    for first in range(0, len(source), TOKENS_AT_ONCE):
        yield first, source.read(first, first + TOKENS_AT_ONCE)
        source.release()


def _eos_problems(shard: TokenShard) -> Iterator[str]:
    """Count EOS again: one for each document, and those that the texts themselves hold."""
    details, counts = shard.manifest.details, shard.manifest.counts
    if (eos_id := details["eos_id"]) is None:
        return
    found = sum(int(np.count_nonzero(batch == eos_id)) for _, batch in _batches(shard.tokens()))
    each = 2 if details["bos_id"] == eos_id else 1
    num_ended = counts["num_documents"]
    if not _ends_empty(shard):
        num_tokens = to_numpy(shard.documents(["num_tokens"])["num_tokens"])
        num_ended -= int(np.count_nonzero(num_tokens == 0))
    expected = each * num_ended + counts["num_eos_in_text"]
    yield from unequal(_path_of(shard, shard_files.TOKENS_NAME), num_eos=(expected, found))


def _ends_empty(shard: TokenShard) -> bool:
    """Return whether empty documents get an EOS."""
    return bool(shard.manifest.recipe.config.get("eos_of_empty", True))


def _mask_problems(shard: TokenShard) -> Iterator[str]:
    where, mask = _path_of(shard, shard_files.LOSS_MASK_NAME), shard.loss_mask()
    yield from unequal(where, num_mask_values=(shard.num_tokens, len(mask)))
    num_found, wrong = 0, list[str]()
    for first, batch in _batches(mask):
        num_found += int(np.count_nonzero(batch))
        for at in np.flatnonzero(batch > 1)[:1]:
            found = f"expected 0 or 1 in the loss mask, found {batch[at]}"
            wrong.append(f"{where}: token {first + at:,}: {found}")
    yield from wrong[:1]
    num_loss_tokens = shard.manifest.counts["num_loss_tokens"]
    yield from unequal(where, num_loss_tokens=(num_loss_tokens, num_found))


def _kept_problems(shard: TokenShard) -> Iterator[str]:
    if shard.keep_columns:
        where, found = _path_of(shard, shard_files.KEPT_NAME), shard.kept_columns()
        expected = (shard.manifest.counts["num_documents"], list(shard.keep_columns))
        if expected != (len(found), found.schema.names):
            yield f"{where}: expected {expected}, found {(len(found), found.schema.names)}"


def verify_tokenizer(tokenizer: Tokenizer) -> list[str]:
    """Return what is wrong with a saved tokenizer: its reference must load and make tokens.

    Before that, its files and special ids are compared with its recipe and its fingerprint, as
    `check_content` can.

    Raises: UntrustedCodeError where it is code, and `tokenizer` does not say that it may run.
    """
    try:
        check_content(tokenizer.manifest, tokenizer.folder)
        encoded = open_reference(tokenizer).encode(to_texts(["a b"]))
    except UntrustedCodeError:
        raise
    except TokflowError as error:
        return [str(error)]
    except Exception as error:
        return [f"{tokenizer.folder}: expected a tokenizer that loads, found: {error}"]
    return list(
        too_large(tokenizer.folder, TokenSource((encoded.token_ids,)), tokenizer.vocab_size)
    )


def too_large(where: object, tokens: TokenSource, vocab_size: int) -> Iterator[str]:
    """Yield a sentence for the first id that is not below vocab_size."""
    for start in range(0, len(tokens), TOKENS_AT_ONCE):
        some = tokens.read(start, start + TOKENS_AT_ONCE)
        if int(some.max()) >= vocab_size:
            at = int(np.argmax(some >= vocab_size))
            yield (
                f"{where}: token {start + at:,}: expected an id below vocab_size {vocab_size:,}, "
                f"found {int(some[at]):,}"
            )
            return
        tokens.release()


def unequal(where: object, **pairs: tuple[int, int]) -> Iterator[str]:
    """Yield a sentence for each count that is not the expected one: name=(expected, found)."""
    for name, (expected, found) in pairs.items():
        if expected != found:
            yield f"{where}: expected {name} {expected:,}, found {found:,}"


def first_other_row(expected: pa.Table, found: pa.Table) -> int:
    """Return the first row in which two tables of the same columns differ, or one has ended."""
    size = min(len(expected), len(found))
    is_other = np.zeros(size, dtype=bool)
    for name in expected.schema.names:
        one, other = (table[name].slice(0, size).to_numpy() for table in (expected, found))
        is_other |= one != other
    return int(np.argmax(is_other)) if is_other.any() else size

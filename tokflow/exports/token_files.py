"""Files of plain numbers, end to end behind a header: what many formats consist of."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.exports.names import FILE_DIGITS, check_num_files
from tokflow.exports.part import Part
from tokflow.exports.shards import cut_runs, sizes_by_documents


def write_numbers(
    path: Path,
    runs: Iterable[npt.NDArray[Any]],
    *,
    header: bytes = b"",
    dtype: np.dtype[Any] | None = None,
) -> int:
    """Write the header and all numbers of `runs`, as `dtype` where it is given; return their
    count."""
    count = 0
    # Buffered, since a raw write may take fewer bytes than it is given and not say so.
    with path.open("wb") as file:
        file.write(header)
        for run in runs:
            numbers = run if dtype is None else run.astype(dtype, copy=False)
            file.write(numbers.data.cast("B"))
            count += run.size
    return count


def write_mask(path: Path, runs: Iterable[npt.NDArray[np.uint8]], *, header: bytes = b"") -> int:
    """Write a loss mask, one byte per token; return how many tokens are learnt."""
    num_learnt = 0

    def counted() -> Iterator[npt.NDArray[np.uint8]]:
        nonlocal num_learnt
        for run in runs:
            num_learnt += int(np.count_nonzero(run))
            yield run

    write_numbers(path, counted(), header=header)
    return num_learnt


def document_lengths(part: Part) -> npt.NDArray[np.int64]:
    """Return the tokens of each document of the part's stream, (num_documents,)."""
    lengths = [of_file.num_tokens for of_file in part.documents()]
    return np.concatenate([np.zeros(0, dtype=np.int64), *lengths])


def offsets_of(lengths: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return where each document begins, and the last ends; (num_documents + 1,)."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])


def blocks_of_documents(
    lengths: npt.NDArray[np.int64], num_tokens: int
) -> Iterator[tuple[slice, npt.NDArray[np.int64]]]:
    """Yield where some whole documents stand in a stream, and the offsets of them from there.

    They have at most `num_tokens` tokens, unless it is one document.
    """
    first_token = first_document = 0
    for size, count in zip(*sizes_by_documents(lengths, num_tokens), strict=True):
        documents = slice(first_document, first_document + int(count))
        yield slice(first_token, first_token + int(size)), offsets_of(lengths[documents])
        first_token, first_document = first_token + int(size), first_document + int(count)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """What goes into one file of a part: whole documents, end to end."""

    number: int
    num_tokens: int
    lengths: npt.NDArray[np.int64]
    """Tokens of each document; (num_documents,)."""
    tokens: Iterator[npt.NDArray[np.unsignedinteger]]
    """To be taken to the end before those of the next shard are."""
    loss_mask: Iterator[npt.NDArray[np.uint8]] | None
    """Of chats; the same."""


def cut_by_documents(
    part: Part,
    *,
    tokens_per_file: int | None,
    where: str,
    digits: int = FILE_DIGITS,
    eos_first: bool = False,
    has_loss_mask: bool = False,
) -> Iterator[Shard]:
    """Yield the shards of a part, whole documents in each; nothing of a part without tokens.

    Each has at most `tokens_per_file` tokens, unless it is one document. Their numbers have
    `digits` digits in the files of the format `where`.

    Raises: ConfigError before the first of more shards than that numbers.
    """
    lengths = document_lengths(part)
    sizes, counts = sizes_by_documents(lengths, tokens_per_file or max(1, part.num_tokens))
    check_num_files(len(sizes), digits=digits, where=where, option="tokens_per_file")
    tokens = cut_runs(part.stream(eos_first=eos_first), sizes.tolist())
    masked = has_loss_mask and part.has_loss_mask
    masks = cut_runs(part.stream_loss_mask(), sizes.tolist()) if masked else None
    stops = np.cumsum(counts).tolist()
    for number, (size, stop) in enumerate(zip(sizes.tolist(), stops, strict=True)):
        yield Shard(
            number=number,
            num_tokens=size,
            lengths=lengths[stop - int(counts[number]) : stop],
            tokens=next(tokens),
            loss_mask=None if masks is None else next(masks),
        )

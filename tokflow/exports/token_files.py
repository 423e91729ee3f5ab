"""Files of a part's tokens: their sizes, their numbers, hashed while they are written, and which of
them are copies of tokens, so that a server can copy them."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tokflow.errors import CorruptOutputError
from tokflow.exports.growing_bin import begun
from tokflow.exports.index import damaged_file
from tokflow.exports.options import FILE_DIGITS, ShardOptions, cut
from tokflow.exports.part import Part
from tokflow.sequences.segments import Sequences
from tokflow.split import Split
from tokflow.store.listed_files import (
    LINKED_BYTES,
    SHORT_BYTES,
    CopiedRange,
    Stamp,
    has_linked,
    note_copies,
)
from tokflow.store.manifest import FileEntry
from tokflow.store.streams import HashedWriter, copy_rest, zstd
from tokflow.store.tables import map_numbers, offsets_of
from tokflow.tokens.shard_files import TOKENS_NAME


def write_numbers(
    path: Path,
    arrays: Iterable[npt.NDArray[Any]],
    *,
    header: bytes = b"",
    dtype: np.dtype[Any] | None = None,
) -> None:
    """Write a header and all numbers of `arrays`, end to end, as `dtype` where it is given."""
    with open_hashed(path) as file:
        file.write(header)
        for array in arrays:
            file.write(array if dtype is None else array.astype(dtype, copy=False))


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """The content of one file of a part: whole documents, end to end."""

    number: int
    num_tokens: int
    lengths: npt.NDArray[np.int64]
    """Tokens of each document; (num_documents,)."""
    tokens: Iterator[npt.NDArray[np.unsignedinteger]]
    """Must be read to the end before the next shard's are."""
    loss_mask: Iterator[npt.NDArray[np.uint8]] | None
    """Loss mask of chats, if asked for; read like the tokens."""


def cut_by_documents(
    part: Part,
    options: ShardOptions,
    *,
    usual: int | None = None,
    most: int | None = None,
    digits: int = FILE_DIGITS,
    eos_first: bool = False,
    has_loss_mask: bool = False,
) -> Iterator[Shard]:
    """Yield the shards of a part, whole documents in each; nothing of a part without tokens.

    `usual`: the tokens of each where the YAML does not say; None: one shard has all. `most`: what a
    file can hold. A shard has more than is asked for only if it is one document.

    Numbers begin with that of the part.

    Raises: ConfigError before the first of more shards than `digits` digits number, and where
    shards of such a number have more than `most` tokens.
    """
    lengths = part.document_lengths()
    if options.num_shards is None:
        size = options.shard_size
        per_file = usual or part.num_tokens if size is None else size // part.dtype.itemsize
        sizes, counts = sizes_by_documents(lengths, max(1, min(per_file, most or per_file)))
    else:
        sizes, counts = even_sizes_by_documents(lengths, options.num_shards)
        options.check_largest(int(sizes.max(initial=0)), most=most, unit="tokens")
    options.check_num_files(part.first_number + len(sizes), digits=digits)
    tokens = cut(part.stream(eos_first=eos_first), sizes.tolist())
    masked = has_loss_mask and part.has_loss_mask
    masks = cut(part.stream_loss_mask(), sizes.tolist()) if masked else None
    of_shards = np.split(lengths, np.cumsum(counts)[:-1])
    for number, size in enumerate(sizes.tolist()):
        yield Shard(
            number=part.first_number + number,
            num_tokens=size,
            lengths=of_shards[number],
            tokens=next(tokens),
            loss_mask=None if masks is None else next(masks),
        )


def batches_of_documents(
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


def sizes_by_documents(
    num_tokens: npt.NDArray[np.int64], tokens_per_file: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the tokens and the documents of each file, if documents stay whole.

    Documents follow each other into a file until the next would make it larger than
    `tokens_per_file`; one that is larger itself has a file of its own. Documents of no tokens
    go with the one before them. Both arrays have the shape (num_files,), int64; no file is empty.
    """
    ends = np.cumsum(num_tokens)
    firsts = [0] if len(ends) and ends[-1] else []
    while firsts:
        before = int(ends[firsts[-1] - 1]) if firsts[-1] else 0
        stop = int(np.searchsorted(ends, before + tokens_per_file, side="right"))
        if stop <= firsts[-1] or ends[stop - 1] == before:  # its first document is too large
            stop = int(np.searchsorted(ends, before, side="right")) + 1
            stop = int(np.searchsorted(ends, ends[stop - 1], side="right"))
        if stop >= len(ends) or ends[stop - 1] == ends[-1]:
            break
        firsts.append(stop)
    edges = np.array([*firsts, len(ends)] if firsts else [], dtype=np.int64)
    return np.diff(offsets_of(num_tokens)[edges]), np.diff(edges)


def even_sizes_by_documents(
    num_tokens: npt.NDArray[np.int64], num_files: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the tokens and the documents of each of `num_files` files, if documents stay whole.

    Each file ends with the document whose end is nearest to where it would if documents were cut;
    every file has a document with tokens, so that of fewer documents there are fewer files.
    Documents of no tokens go with the one before them. Both arrays have the shape (num_files,).

    Of documents of 5, 1, 1 and 1 tokens in 3 files: 5, 1 and 2 tokens.
    """
    ends = np.cumsum(num_tokens)
    some = np.flatnonzero(num_tokens)
    num = min(num_files, len(some))
    if num == 0:
        return sizes_by_documents(num_tokens, 1)
    ordinal = np.arange(1, num)
    wanted = ordinal * (ends[-1] / num)
    last = np.searchsorted(ends[some], wanted)
    before = np.where(last > 0, ends[some][last - 1], 0)
    last -= wanted - before < ends[some][last] - wanted
    last = np.maximum.accumulate(np.maximum(last, ordinal - 1) - ordinal) + ordinal
    last = np.minimum(last, len(some) - 1 - num + ordinal)
    edges = np.concatenate([[0], some[last + 1], [len(num_tokens)]])
    return np.diff(offsets_of(num_tokens)[edges]), np.diff(edges)


Compression = Literal["none", "zstd"]
"""Compression of whole files, as litdata and mosaicml-streaming have it."""


def peer_name(compression: str, level: int | None) -> str | None:
    """Return what litdata and mosaicml-streaming call a compression: `zstd` at their default
    level, else `zstd:<level>`."""
    if compression == "none":
        return None
    return "zstd" if level is None else f"zstd:{level}"


def item_header(ends: Sequence[int] | npt.NDArray[Any]) -> bytes:
    """Return the beginning of a file of items, as `open_items` reads it.

    `ends`: the first byte of the first item, and where each ends.
    """
    return np.array([len(ends) - 1, *ends], dtype="<u4").tobytes()


def open_items(
    path: Path, *, is_compressed: bool
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint32]]:
    """Return the bytes of a file and where its items begin, and the last ends.

    uint32 number of items | uint32 first byte of each, and the end | what the format has there |
    items. Memory-mapped unless the file is one frame of zstd.

    Raises: CorruptOutputError where the items do not end with the file; zstd.ZstdError where the
    frame is damaged or cut short.
    """
    if is_compressed:
        data = np.frombuffer(zstd.decompress(path.read_bytes()), dtype=np.uint8)
    else:
        data = map_numbers(path, np.uint8)
    num_items = int(data[:4].view("<u4")[0])
    offsets = data[4 : 4 * (num_items + 2)].view("<u4")
    if offsets[-1] != len(data) or offsets[0] < 4 * (num_items + 2):
        expected = f"{offsets[-1]:,} bytes, {num_items:,} items in them"
        raise damaged_file(path, expected=expected, found=f"{len(data):,}")
    return data, offsets


def sequences_within(limit: int, size: int) -> int:
    """Return how many sequences of this size fit into `limit`; one at least."""
    return max(1, limit // size)


def files_of(
    part: Part, sizes: Sequence[int], options: ShardOptions, at_once: int | None = None
) -> Iterator[tuple[int, Iterator[Sequences]]]:
    """Yield the ordinal of each file and the sequences that go into it, as many as `sizes` says.

    Those of one file must be taken before the next file is. What is written at once depends
    on `at_once` alone: a batch is cut only where a file ends; `shards: by_file` it begins there,
    too. Only the files of the sequences `part.within`, if that is given.
    """
    within = range(part.num_sequences) if part.within is None else part.within
    firsts = [0, *accumulate(sizes)]
    own = slice(bisect_left(firsts, within.start), bisect_left(firsts, within.stop))
    if options.is_by_file:
        edges = pairwise(firsts[own.start : own.stop + 1])
        return enumerate((part.sequences(at_once, range(*of)) for of in edges), own.start)
    return enumerate(cut(part.sequences(at_once), sizes[own]), own.start)


_written: dict[Path, tuple[FileEntry, Stamp]] = {}
"""Files that were made here, and how they looked then."""


def write_tokens(part: Part, path: Path, dtype: np.dtype[np.unsignedinteger]) -> None:
    """Write the tokens of a part to one file: a link to a token shard that is all of them, or the
    file that was written ahead; else what the last export has of them, copied by the system, and
    then the others. Long ranges that are copies are noted, so that a server can copy them."""
    if part.dtype.itemsize == dtype.itemsize and is_copied(part, path):
        if part.taken is not None:
            part.taken["num_tokens"] += part.num_tokens
    elif not _is_continued(part, path, dtype):
        write_numbers(path, part.stream(), dtype=dtype)
    is_alike = all(split.shard.dtype == dtype for split in part.splits)
    is_long = part.num_tokens * dtype.itemsize >= SHORT_BYTES
    if is_long and is_alike and part.shuffled is None:
        position, copied = 0, list[CopiedRange]()
        for split in part.splits:
            copied += _copied_ranges(split, part.name, position)
            position += split.manifest.counts[f"{part.name}.num_tokens"]
        note_copies(path, copied)


def _is_continued(part: Part, path: Path, dtype: np.dtype[np.unsignedinteger]) -> bool:
    """Return whether `path` is now the file of the same name in the last export, and behind it the
    tokens of the other raw files."""
    entry = part.last and part.last.files.get(path.name)
    if not part.last or not entry:
        return False
    rest = replace(part, splits=part.splits[part.last.num_splits :])
    with open_hashed(path) as file:
        copied = None
        with suppress(OSError):  # of a file that is gone, or on a disk that fails
            copied = file.copy(part.last.folder / path.name)
        if copied != entry:
            return False
        for array in rest.stream():
            file.write(array.astype(dtype, copy=False))
    if part.taken is not None:
        part.taken["num_tokens"] += part.num_tokens - rest.num_tokens
    return True


@contextmanager
def open_hashed(path: Path) -> Iterator[HashedWriter]:
    """Open a new file, in a folder that is made if need be."""
    path.parent.mkdir(exist_ok=True)
    with HashedWriter(path) as file:
        yield file
    _written[path] = file.entry(), Stamp.of(path.stat())


def is_copied(part: Part, new: Path) -> bool:
    """Return whether `new` is now a copy of whole files of tokens, end to end: where the part is
    one such file, or all of those that were copied ahead."""
    splits = [of for of in part.splits if of.manifest.counts[f"{part.name}.num_tokens"]]
    files = [(of.shard.stored, name) for of in splits for name in of.shard.names(TOKENS_NAME)]
    has_all = sum(split.shard.num_tokens for split in splits) == part.num_tokens
    if not has_all or part.shuffled or (len(files) > 1 and not begun):
        return False
    is_cut = (split.rows(part.name)["is_cut"] for split in splits)
    if any(len(of) != 1 or of[0] for of in is_cut):
        return False
    paths = [output.file(name) for output, name in files]
    if len(paths) == 1:
        [(output, name)] = files
        copy_file(paths[0], output.manifest.files[name], new)
        return True
    for entry in filter(None, (ahead.take(paths, new) for ahead in begun)):
        _written[new] = entry, Stamp.of(new.stat())
        return True
    return False


def copy_file(path: Path, entry: FileEntry, new: Path) -> None:
    """Link to a file of this entry or, where that cannot be done, copy it: the new one has the same
    entry, so that whoever compares it finds a copy that is not equal.

    Raises: CorruptOutputError where the file has not the size of its entry.
    """
    if entry.num_bytes < LINKED_BYTES or not has_linked(path, new):
        with path.open("rb") as source, new.open("wb") as file:
            copy_rest(source, file)
    stamp = Stamp.of(new.stat())
    if stamp.num_bytes != entry.num_bytes:
        raise CorruptOutputError(
            where=path,
            expected=f"{entry.num_bytes:,} bytes to copy",
            found=f"{stamp.num_bytes:,}",
            remedy="run `tokflow run` again, which makes what is damaged again",
        )
    _written[new] = entry, stamp
    note_copies(new, [CopiedRange(0, path, 0, entry.num_bytes)])


def entry_of(path: Path) -> FileEntry:
    """Return size and sha256 of a file that was made here."""
    return _written[path][0]


def take_hashed(folder: Path) -> dict[str, FileEntry]:
    """Return size and sha256 of the files below `folder` that were made here, by path there; but
    not of those that were written to since. They are forgotten here."""
    paths = [path for path in _written if path.is_relative_to(folder)]
    found = {path: _written.pop(path) for path in paths}
    return {
        path.relative_to(folder).as_posix(): entry
        for path, (entry, stamp) in found.items()
        if path.exists() and Stamp.of(path.stat()) == stamp
    }


def _copied_ranges(split: Split, part: str, position: int) -> Iterator[CopiedRange]:
    """Yield the ranges of a file of a part's tokens that are copies of files of a split's shard,
    given the position of the split's first token in it: long ones, of spans that follow each other.
    Those of cut documents are in none of the files."""
    shard, rows = split.shard, split.rows(part)
    size, names = shard.dtype.itemsize, shard.names(TOKENS_NAME)
    sizes = [shard.manifest.files[name].num_bytes // size for name in names]
    edges = np.cumsum([0, *sizes]).tolist()
    starts, lengths = rows["token_start"], rows["num_tokens"]
    ends, at = starts + lengths, position + np.cumsum(lengths) - lengths
    is_first = np.concatenate([[True], starts[1:] != ends[:-1]])[: len(starts)]
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(starts))[: len(firsts)] - 1
    is_long = (ends[lasts] - starts[firsts]) * size >= SHORT_BYTES
    runs = starts[firsts], ends[lasts], at[firsts]
    for start, stop, place in zip(*(of[is_long].tolist() for of in runs), strict=True):
        for name, (first, end) in zip(names, pairwise(edges), strict=True):
            low, high = max(start, first), min(stop, end)
            if low < high:
                there, num_bytes = (low - first) * size, (high - low) * size
                path = shard.folder / name
                yield CopiedRange((place + low - start) * size, path, there, num_bytes)

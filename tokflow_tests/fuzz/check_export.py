"""Compare the files, the index and the counts of an export with the model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tokflow_tests.fuzz.check_loaders import PADDING, Row, check_loaded_rows, check_loaded_stream
from tokflow_tests.fuzz.check_rows import check_rows
from tokflow_tests.fuzz.check_stages import dtype_of
from tokflow_tests.fuzz.difference import DifferenceError, same
from tokflow_tests.fuzz.exports import DROPS_EMPTY, Options, is_eos_first, is_stream
from tokflow_tests.fuzz.model import Documents, Piece, Pieces, RawFile
from tokflow_tests.fuzz.orders import number_at
from tokflow_tests.fuzz.packing import row_length
from tokflow_tests.fuzz.readers import Export, Rows, Stream, read_part
from tokflow_tests.fuzz.references import Reference


@dataclass(frozen=True, kw_only=True)
class ExportToCheck:
    """An export that tokflow made, and what it was made of."""

    folder: Path
    manifest: Any
    options: Options
    packings: Mapping[str, Mapping[str, Any]]
    """By part."""
    shuffle_seed: int | None
    """Of the order of rows."""
    parts: Pieces
    reference: Reference
    config: Mapping[str, Any]
    """Of the tokenizer."""
    keep_columns: Sequence[str] = ()
    """Of the documents."""
    is_chat: bool = False
    """Whether only some tokens are supervised."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the counts of the manifest."""
        return self.manifest.counts

    def pieces(self, part: str) -> list[Piece]:
        """Return the pieces of a part in order, over all files."""
        return [piece for of_file in self.parts[part].values() for piece in of_file]

    @property
    def moves_eos(self) -> bool:
        """Whether EOS stands before each document and not behind it."""
        return is_eos_first(self.options) and self.config.get("bos") != "first"

    def pad_id(self, part: str) -> int:
        """Return the id that fills a row of a part."""
        of_packing = self.packings[part].get("pad_id")
        if of_packing is None:
            of_packing = self.reference.eos_id if self.config.get("eos") != "none" else 0
        own = self.options.get("pad_id") if self.options["format"] == "pickle" else None
        return of_packing if own is None else own


@dataclass(frozen=True)
class IndexRun:
    """A row of the index."""

    position: int
    num_tokens: int
    file: str
    row: int
    char_start: int
    token_in_piece: int


@dataclass(frozen=True, kw_only=True)
class CheckedExport:
    """An export that was compared, and where its tokens are."""

    made: ExportToCheck
    is_stream: bool
    runs: dict[str, list[IndexRun]]
    """The index, by part."""
    num_tokens: int
    _pieces: dict[tuple[str, str, int, int], Piece] = field(default_factory=dict)

    def piece_of(self, part: str, run: IndexRun) -> Piece:
        """Return the whole piece that a run of the index is of."""
        if not self._pieces:
            for name, of_files in self.made.parts.items():
                for piece in (piece for some in of_files.values() for piece in some):
                    self._pieces[name, piece.file, piece.row, piece.char_start] = piece
        return self._pieces[part, run.file, run.row, run.char_start]


def check_export(made: ExportToCheck) -> CheckedExport:
    """Compare files, index and counts of an export with its pieces."""
    runs = read_index(made)
    stream = is_stream(made.options)
    num_tokens = 0
    for part in made.parts:
        where = f"{made.folder.parent.name} {made.options}: {part}"
        export = Export(
            folder=made.folder,
            options=made.options,
            part=part,
            parts=list(made.parts),
            dtype=dtype_of(made.reference),
        )
        found = read_part(export)
        if isinstance(found, Stream):
            num_tokens += len(found.tokens)
            _check_stream(where, made, part, found, runs[part])
        else:
            num_tokens += _check_rows(where, made, part, found, runs[part])
    return CheckedExport(made=made, is_stream=stream, runs=runs, num_tokens=num_tokens)


def read_index(made: ExportToCheck) -> dict[str, list[IndexRun]]:
    """Return the rows of _tokflow/index.parquet by part, which are in the order of their tokens."""
    runs: dict[str, list[IndexRun]] = {part: [] for part in made.parts}
    for row in pq.read_table(made.folder / "_tokflow/index.parquet").to_pylist():
        runs[row["part"]].append(
            IndexRun(
                position=row["position"],
                num_tokens=row["num_tokens"],
                file=row["raw_file"],
                row=row["row"],
                char_start=row["char_start"],
                token_in_piece=row["token_in_piece"],
            )
        )
    for part, of_part in runs.items():
        positions = [run.position for run in of_part]
        same(f"index of {part}: order", expected=sorted(positions), found=positions)
        if any(run.num_tokens < 1 for run in of_part):
            raise DifferenceError(f"index of {part}: a run without tokens")
    return runs


Origin = tuple[str, int, int, int]
"""Raw file, row, first character of the piece, and tokens of it before this one."""


def _order(piece: Piece, *, moves_eos: bool) -> Sequence[int]:
    size = len(piece.tokens)
    return [size - 1, *range(size - 1)] if moves_eos and size else range(size)


def _origins(pieces: Sequence[Piece], *, moves_eos: bool) -> list[Origin]:
    return [
        (piece.file, piece.row, piece.char_start, token)
        for piece in pieces
        for token in _order(piece, moves_eos=moves_eos)
    ]


def _check_index(where: str, expected: list[Origin], runs: Sequence[IndexRun]) -> None:
    """Every position from 0 on leads to its document."""
    found: list[Origin] = []
    for run in runs:
        same(f"{where}: position of a run of the index", expected=len(found), found=run.position)
        found += [
            (run.file, run.row, run.char_start, run.token_in_piece + number)
            for number in range(run.num_tokens)
        ]
    same(f"{where}: index", expected=expected, found=found)


def _check_stream(
    where: str, made: ExportToCheck, part: str, found: Stream, runs: Sequence[IndexRun]
) -> None:
    pieces = made.pieces(part)
    moves_eos = made.moves_eos
    tokens = [p.tokens[at] for p in pieces for at in _order(p, moves_eos=moves_eos)]
    same(f"{where}: tokens", expected=tokens, found=found.tokens)
    mask = [p.mask[at] for p in pieces for at in _order(p, moves_eos=moves_eos)]
    check_loaded_stream(where, made.folder, part, found, mask)
    _check_index(where, _origins(pieces, moves_eos=moves_eos), runs)
    counts = {"num_tokens": len(tokens), "num_dropped_tokens": 0}
    lengths = [len(piece.tokens) for piece in pieces]
    if made.options["format"] in DROPS_EMPTY:
        lengths = [length for length in lengths if length]
    kept = [of_file for _, of_file in found.files if of_file is not None]
    if kept:
        same(f"{where}: documents", expected=lengths, found=[n for some in kept for n in some])
        counts["num_documents"] = len(lengths)
    of_part = {name: made.counts[f"{part}.{name}"] for name in counts}
    same(f"{where}: counts", expected=counts, found=of_part)
    _check_file_sizes(
        where, made.options, found, lengths, np.dtype(dtype_of(made.reference)).itemsize
    )


def _check_file_sizes(
    where: str, options: Options, found: Stream, lengths: Sequence[int], itemsize: int
) -> None:
    """A file has no more tokens than the options say, unless it is one document; of a number of
    files there are so many, each with one document, block or (lance) token at least."""
    blocks = {"litdata": options.get("block_size", 2049), "lance": 1}
    block = blocks.get(options["format"])
    if (num_files := options.get("shards")) is not None:
        num_units = -(-len(found.tokens) // block) if block else sum(map(bool, lengths))
        if len(found.files) != min(num_files, num_units):
            raise DifferenceError(f"{where}: {len(found.files)} files, not {num_files}")
    size = options.get("shard_size")
    if size is None:
        return
    itemsize = 8 if options["format"] == "lance" else itemsize
    limit = max(block or 1, int(str(size).replace("kB", "000")) // itemsize)
    ends = {sum(lengths[:number]) for number in range(len(lengths) + 1)}
    position = 0
    for num_tokens, _ in found.files:
        inside = [end for end in ends if position < end < position + num_tokens]
        if num_tokens > limit and (inside or block):
            raise DifferenceError(f"{where}: a file of {num_tokens} tokens, and not one document")
        position += num_tokens
        if not block and position not in ends:
            raise DifferenceError(f"{where}: a file ends within a document, at {position}")


def _check_rows(
    where: str, made: ExportToCheck, part: str, found: Rows, runs: Sequence[IndexRun]
) -> int:
    """Compare rows with the packing; return how many tokens they have, padding not counted."""
    pieces = made.pieces(part)
    number = {(p.file, p.row, p.char_start): n for n, p in enumerate(pieces)}
    length = row_length(made.packings[part])
    num_rows = len(found.fields.get("token_ids", ()))
    rows: list[list[tuple[int, int, int]]] = [[] for _ in range(num_rows)]
    fills = Counter(run.position // length for run in runs for _ in range(run.num_tokens))
    is_left = made.packings[part].get("padding_side") == "left"
    for run in runs:
        row, column = divmod(run.position, length)
        column -= length - fills[row] if is_left else 0
        if row >= num_rows or column != sum(size for *_, size in rows[row]):
            raise DifferenceError(f"{where}: index: {run} is not behind the run before it")
        piece = number.get((run.file, run.row, run.char_start))
        if piece is None:
            raise DifferenceError(f"{where}: index: {run} is of no document of the part")
        rows[row].append((piece, run.token_in_piece, run.num_tokens))
    if made.options["format"] != "pickle":
        packed = [_filled(made, part, pieces, row, is_left=is_left) for row in rows]
        has_label_token = bool(made.packings[part].get("label_token"))
        columns = made.options.get("columns", ())
        check_loaded_rows(
            where, made.folder, part, packed, columns, has_label_token=has_label_token
        )
    if made.shuffle_seed is not None:  # as they are without
        purpose = f"sequences:{part}"
        order = partial(number_at, size=num_rows, seed=made.shuffle_seed, purpose=purpose)
        places = sorted(range(num_rows), key=order)
        rows = [rows[place] for place in places]
        fields = {name: [of[place] for place in places] for name, of in found.fields.items()}
        check_rows(where, made, part, pieces, rows, replace(found, fields=fields))
    else:
        check_rows(where, made, part, pieces, rows, found)
    num_files, sizes = made.options.get("shards"), found.sizes
    if num_files and (
        len(sizes) != min(num_files, num_rows) or max(sizes, default=0) - min(sizes, default=0) > 1
    ):
        raise DifferenceError(f"{where}: files of {Counter(sizes)} rows, not {num_files} files")
    return sum(run.num_tokens for run in runs)


def _filled(
    made: ExportToCheck,
    part: str,
    pieces: Sequence[Piece],
    row: Sequence[tuple[int, int, int]],
    *,
    is_left: bool,
) -> Row:
    """Return the tokens of a row and which segment each is of, filled up to its length."""
    filled = [
        (token, number, is_label)
        for number, (piece, start, size) in enumerate(row, start=1)
        for token, is_label in [*zip(pieces[piece].tokens, pieces[piece].mask, strict=True)][
            start : start + size
        ]
    ]
    rest = [(PADDING, 0, 0)] * (row_length(made.packings[part]) - len(filled))
    return [*rest, *filled] if is_left else [*filled, *rest]


def check_kept(
    folder: Path,
    config: Mapping[str, Any],
    files: Sequence[RawFile],
    documents: Mapping[str, Documents],
) -> None:
    """Compare each row of the index with the record that its document is of, by `config` of the
    documents; a value that is no text is left alone."""
    names = config.get("keep_columns", ())
    records = {file.key: file.records or () for file in files}
    text = config.get("text", "text")
    is_one = isinstance(text, str) or "join" in config
    num_each = 1 if is_one else len(text)
    for found in pq.read_table(folder / "_tokflow/index.parquet").to_pylist() if names else ():
        key, row = found["raw_file"], found["row"]
        record = row // num_each
        if "transform" in config:
            rows = [row for row, _ in documents[key].accepted]
            record = documents[key].records[rows.index(row)]
        for name in names:
            if (value := (records[key][record] or {}).get(name)) is not None:
                same(f"{folder}: {key}, row {row}: {name}", expected=value, found=found[name])

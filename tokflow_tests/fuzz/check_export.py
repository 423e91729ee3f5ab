"""Compare the files, the index and the counts of an export with the model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from tokflow_tests.fuzz.check_rows import (
    ExportToCheck,
    PartToCheck,
    check_loaded_rows,
    check_loaded_stream,
    check_rows,
)
from tokflow_tests.fuzz.difference import DifferenceError, same
from tokflow_tests.fuzz.exports import DROPS_EMPTY
from tokflow_tests.fuzz.model import Documents, Piece, RawFile
from tokflow_tests.fuzz.orders import number_at
from tokflow_tests.fuzz.packing import Row, Run, row_length
from tokflow_tests.fuzz.readers import Export, Rows, Stream, read_part


class IndexRun(NamedTuple):
    """A row of the index."""

    position: int
    num_tokens: int
    raw_file: str
    row: int
    char_start: int
    token_in_piece: int

    def is_of(self, piece: Piece) -> bool:
        """Say whether this is of a piece."""
        return self[2:5] == (piece.file, piece.row, piece.char_start)


@dataclass(frozen=True, kw_only=True)
class CheckedExport:
    """An export that was compared, and where its tokens are."""

    made: ExportToCheck
    runs: dict[str, list[IndexRun]]
    """The index, by part."""
    num_tokens: int


def check_export(made: ExportToCheck) -> CheckedExport:
    """Compare files, index and counts of an export with its pieces."""
    runs = _read_index(made)
    num_tokens = 0
    for part in map(partial(PartToCheck, made), made.parts):
        plain = Export(
            folder=made.folder,
            options=made.options,
            part=part.name,
            parts=list(made.parts),
            dtype=made.reference.dtype,
        )
        found = read_part(plain)
        if isinstance(found, Stream):
            num_tokens += _check_stream(part, found, runs[part.name])
        else:
            num_tokens += _check_rows(part, found, runs[part.name])
    return CheckedExport(made=made, runs=runs, num_tokens=num_tokens)


def _read_index(made: ExportToCheck) -> dict[str, list[IndexRun]]:
    """Return the rows of _tokflow/index.parquet by part, which are in the order of their tokens."""
    runs: dict[str, list[IndexRun]] = {part: [] for part in made.parts}
    for row in pq.read_table(made.folder / "_tokflow/index.parquet").to_pylist():
        runs[row["part"]].append(IndexRun(*(row[name] for name in IndexRun._fields)))
    for part, of_part in runs.items():
        positions = [run.position for run in of_part]
        same(f"index of {part}: order", expected=sorted(positions), found=positions)
        if any(run.num_tokens < 1 for run in of_part):
            raise DifferenceError(f"index of {part}: a run without tokens")
    return runs


def _check_stream(part: PartToCheck, found: Stream, runs: Sequence[IndexRun]) -> int:
    """Compare tokens, index and counts of a stream, with EOS where its format has it; return how
    many tokens it has."""
    order = [
        (piece, at % len(piece.tokens))
        for piece in part.pieces
        for at in range(-part.moves_eos, len(piece.tokens) - part.moves_eos)
    ]
    tokens = [piece.tokens[at] for piece, at in order]
    same(f"{part.where}: tokens", expected=tokens, found=found.tokens)
    check_loaded_stream(part, found, [piece.mask[at] for piece, at in order])
    origins = []
    for run in runs:
        where = f"{part.where}: position of a run of the index"
        same(where, expected=len(origins), found=run.position)
        tokens_of_run = range(run.token_in_piece, run.token_in_piece + run.num_tokens)
        origins += [(*run[2:5], token) for token in tokens_of_run]
    expected = [(piece.file, piece.row, piece.char_start, at) for piece, at in order]
    same(f"{part.where}: index", expected=expected, found=origins)
    counts = {"num_tokens": len(tokens), "num_dropped_tokens": 0}
    lengths = [len(piece.tokens) for piece in part.pieces]
    if part.made.options["format"] in DROPS_EMPTY:
        lengths = [length for length in lengths if length]
    kept = [of_file for _, of_file in found.files if of_file is not None]
    if kept:
        in_files = [n for some in kept for n in some]
        same(f"{part.where}: documents", expected=lengths, found=in_files)
        counts["num_documents"] = len(lengths)
    part.same_counts(counts)
    _check_file_sizes(part, found, lengths)
    return len(tokens)


def _check_file_sizes(part: PartToCheck, found: Stream, lengths: Sequence[int]) -> None:
    """A file has no more tokens than the options say, unless it is one document; of a number of
    files there are so many, each with one document, block or (lance) token at least."""
    where, options = part.where, part.made.options
    blocks = {"litdata": options.get("block_size", 2049), "lance": 1}
    block = blocks.get(options["format"])
    if (num_files := options.get("shards")) is not None:
        num_units = -(-len(found.tokens) // block) if block else sum(map(bool, lengths))
        if len(found.files) != min(num_files, num_units):
            raise DifferenceError(f"{where}: {len(found.files)} files, not {num_files}")
    size = options.get("shard_size")
    if size is None:
        return
    dtype = "<i8" if options["format"] == "lance" else part.made.reference.dtype
    itemsize = np.dtype(dtype).itemsize
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


def _check_rows(part: PartToCheck, found: Rows, runs: Sequence[IndexRun]) -> int:
    """Compare rows with the packing; return how many tokens they have, padding not counted."""
    where, made = part.where, part.made
    number = {(p.file, p.row, p.char_start): n for n, p in enumerate(part.pieces)}
    length = row_length(part.packing)
    num_rows = len(found.fields.get("token_ids", ()))
    rows: list[Row] = [[] for _ in range(num_rows)]
    fills = Counter(run.position // length for run in runs for _ in range(run.num_tokens))
    for run in runs:
        row, column = divmod(run.position, length)
        if part.packing.get("padding_side") == "left":
            column -= length - fills[row]
        if row >= num_rows or column != sum(before.size for before in rows[row]):
            raise DifferenceError(f"{where}: index: {run} is not behind the run before it")
        piece = number.get(run[2:5])
        if piece is None:
            raise DifferenceError(f"{where}: index: {run} is of no document of the part")
        rows[row].append(Run(piece, run.token_in_piece, run.num_tokens))
    if made.options["format"] != "pickle":
        check_loaded_rows(part, rows)
    places = [*range(num_rows)]
    if made.shuffle_seed is not None:  # as they are without
        purpose = f"sequences:{part.name}"
        places.sort(key=partial(number_at, size=num_rows, seed=made.shuffle_seed, purpose=purpose))
    fields = {name: [of[place] for place in places] for name, of in found.fields.items()}
    check_rows(part, [rows[place] for place in places], replace(found, fields=fields))
    num_files, sizes = made.options.get("shards"), found.sizes
    if num_files and (
        len(sizes) != min(num_files, num_rows) or max(sizes, default=0) - min(sizes, default=0) > 1
    ):
        raise DifferenceError(f"{where}: files of {Counter(sizes)} rows, not {num_files} files")
    return sum(run.num_tokens for run in runs)


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

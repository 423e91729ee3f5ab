"""The parts of an export, put together again from its own files and its index.

For users that have an export and want another format of it: the token shards and the raw files
that it was made from may be gone, or on another machine.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.errors import ConfigError
from tokflow.exports import INDEX_NAME, Export, Part
from tokflow.exports.damage import damaged_file
from tokflow.exports.index import INDEX_SCHEMA
from tokflow.exports.part import make_parts
from tokflow.sequences.config import PackingConfig
from tokflow.sequences.segments import FileSequences, open_sequences, write_sequences
from tokflow.split.shuffle import ExportOrder, document_keys, seed_in_files
from tokflow.split.spans import SPANS_NAME, SPANS_SCHEMA, Split
from tokflow.store.arrow import make_table, repeated, to_arrow, to_numpy
from tokflow.store.manifest import checksum
from tokflow.store.stored_outputs import StoredOutput, read_output
from tokflow.store.tables import Columns, parquet_options
from tokflow.tokens.document_table import DOCUMENTS_SCHEMA
from tokflow.tokens.origins import Origins
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.token_source import TokenSource, mapped
from tokflow.tokens.writer import DOCUMENTS_NAME, KEPT_NAME, LOSS_MASK_NAME, TOKENS_NAME

if TYPE_CHECKING:
    import pyarrow.parquet as pq

TOKENS_AT_ONCE = 2_048 * 2_048
"""Tokens copied at one go."""

ENTRY_COLUMNS = ("position", "num_tokens", "row", "char_start", "token_in_piece")

FILES = {"token_ids": TOKENS_NAME, "loss_mask": LOSS_MASK_NAME}
"""Fields that are gathered, and their files in a token shard."""


def gather_parts(
    found: StoredOutput,
    packing: PackingConfig | None,
    folder: Path,
    *,
    order: ExportOrder,
) -> list[Part]:
    """Return what another export of the same tokens is made from; its files are in `folder`.

    The documents have the order of their raw files again, each token stands once, and what the
    export did not hold (dropped tokens, documents of no tokens) is not there. `packing` makes
    sequences; None is for formats that need none. `folder` must stay as long as the parts do.

    Raises: ConfigError for a format that is never read, and where the beginning of a document was
    dropped; CorruptOutputError where the files hold more or less than their manifest says.
    """
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    details = found.manifest.details
    flat = {name: _flat(found, name, folder) for name in details["parts"]}
    files: list[Split | FileSequences] = []
    with pq.ParquetFile(found.folder / INDEX_NAME, read_dictionary=["part", "raw_file"]) as file:
        index = _Index(file)
        for number, raw_file in enumerate(index.raw_files):
            packed = folder / f"{number:06d}" / "sequences"
            packed.mkdir(parents=True)
            split = _write_split(found, flat, raw_file, index, packed.parent)
            if packing is None or order.documents is not None:
                files.append(split)
            else:
                write_sequences(split, packing, packed, dataset=found.manifest.dataset)
                files.append(open_sequences(read_output(packed), split))
    return make_parts(
        details["parts"],
        details,
        files,
        packing or PackingConfig(),
        order=order,
        is_packed=packing is not None,
    )


def _flat(found: StoredOutput, part: str, folder: Path) -> dict[str, TokenSource]:
    """Return all positions of a part, padding included, copied into flat files of `folder`."""
    export = Export(found.folder, found.manifest)
    dtypes: dict[str, np.dtype[Any]] = {"token_ids": export.dtype}
    if export.has_loss_mask(part):
        dtypes["loss_mask"] = np.dtype(np.uint8)
    paths = {name: folder / f"{part}.{name}" for name in dtypes}
    for path in paths.values():
        path.touch()
    num_read = 0
    for fields in export.read(part):
        for name, path in paths.items():
            values = fields[name].reshape(-1)
            with path.open("ab") as file:
                for start in range(0, len(values), TOKENS_AT_ONCE):
                    some = values[start : start + TOKENS_AT_ONCE]
                    some.astype(dtypes[name], copy=False).tofile(file)
        num_read += fields["token_ids"].size
    num_positions = export.num_positions(part)
    if num_read != num_positions:
        expected = f"{num_positions:,} tokens of {part}, padding among them"
        raise damaged_file(found.folder, expected=expected, found=f"{num_read:,}")
    return {name: TokenSource((mapped(path, dtypes[name]),)) for name, path in paths.items()}


ROWS_AT_ONCE = 2**22
"""Rows of the index in memory, those of some raw files: 200 MB, or an eighth of the rows where they
have columns that are kept, as text. A row group is read once for them,
so that an index in the order of a shuffle, where each has rows of all, is read few times."""


class _Index:
    """The index of an export, by raw file and part; files are to be asked for in order."""

    def __init__(self, file: "pq.ParquetFile") -> None:
        self._file = file
        self.kept = tuple(file.schema_arrow.names[len(INDEX_SCHEMA) :])
        """The columns that are kept of the raw files' documents."""
        self._at_once = ROWS_AT_ONCE // (8 if self.kept else 1)
        self._groups: dict[str, list[int]] = {}
        """The row groups of each raw file."""
        self._num_rows: Counter[str] = Counter()
        self._entries: dict[tuple[str, str], list[Columns]] = {}
        """Rows by raw file and part, of the files whose rows are in memory."""
        self._last = ""
        """The last of them."""
        for number in range(file.num_row_groups):
            names = file.read_row_group(number, columns=["raw_file"])[0]
            for name, rows in _rows_of_names(names):
                self._groups.setdefault(name, []).append(number)
                self._num_rows[name] += len(rows)
        self.raw_files = sorted(self._groups)

    def entries(self, raw_file: str, part: str) -> Columns:
        """Return the rows of one raw file in a part, in the order of their positions."""
        if raw_file > self._last:
            self._read_from(raw_file)
        found = self._entries.get((raw_file, part), [])
        none = np.zeros(0, dtype=np.int64)
        names = (*ENTRY_COLUMNS, *self.kept)
        return {name: np.concatenate([none, *(of[name] for of in found)]) for name in names}

    def _read_from(self, raw_file: str) -> None:
        """Read the rows of a raw file, and of those after it that there is room for."""
        following = self.raw_files[bisect_left(self.raw_files, raw_file) :]
        ends = accumulate(self._num_rows[name] for name in following)
        chosen = {name for name, end in zip(following, ends, strict=True) if end <= self._at_once}
        chosen.add(raw_file)
        self._entries, self._last = {}, max(chosen)
        for number in sorted({number for name in chosen for number in self._groups[name]}):
            group = self._file.read_row_group(number)
            part = group["part"][0].as_py()  # it is of one
            columns = {name: to_numpy(group[name]) for name in ENTRY_COLUMNS}
            columns |= {name: group[name].to_numpy() for name in self.kept}
            for name, rows in _rows_of_names(group["raw_file"]):
                if name in chosen:
                    some = {of: values[rows] for of, values in columns.items()}
                    self._entries.setdefault((name, part), []).append(some)


def _rows_of_names(column: pa.ChunkedArray) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """Yield each name in a column that is read as a dictionary, and the rows that have it."""
    if not len(column):
        return
    names = column.unify_dictionaries().combine_chunks()
    codes = to_numpy(names.indices)
    order = np.argsort(codes, kind="stable")
    edges = np.searchsorted(codes[order], range(len(names.dictionary) + 1)).tolist()
    for name, (start, stop) in zip(names.dictionary.to_pylist(), pairwise(edges), strict=True):
        if stop > start:
            yield name, order[start:stop]


def _write_split(
    found: StoredOutput,
    flat: Mapping[str, Mapping[str, TokenSource]],
    raw_file: str,
    index: _Index,
    folder: Path,
) -> Split:
    """Write the tokens of one raw file as a token shard and its split, whose manifest, one for
    both, is in memory alone."""
    tables, counts = [], {}
    seed = seed_in_files(found.manifest)
    for part, sources in flat.items():
        entries = _in_document_order(index.entries(raw_file, part), raw_file, seed, found.folder)
        starts, sizes = entries["position"], entries["num_tokens"]
        for name, source in sources.items():
            with (folder / FILES[name]).open("ab") as file:
                for some in source.batches(starts, sizes, TOKENS_AT_ONCE):
                    some.tofile(file)
        first = np.flatnonzero(_begins_span(entries))
        spans = {name: to_arrow(entries[name][first]) for name in ("row", "char_start")}
        spans |= {name: pa.array(entries[name][first].tolist(), pa.string()) for name in index.kept}
        spans["num_tokens"] = to_arrow(np.add.reduceat(sizes, first) if len(first) else first)
        tables.append(pa.table({**spans, "part": repeated(part, len(first))}))
        num_cut = int(np.count_nonzero(entries["char_start"][first]))
        counts[f"{part}.num_documents"] = len(first) - num_cut
        counts[f"{part}.num_cut_pieces"] = num_cut
        counts[f"{part}.num_tokens"] = int(sizes.sum())
    _write_tables(pa.concat_tables(tables), folder, index.kept)
    mask = folder / LOSS_MASK_NAME
    documents = {"documents": {"keep_columns": list(index.kept)}}
    manifest = replace(
        found.manifest,
        recipe=replace(found.manifest.recipe, config={**found.manifest.config, **documents}),
        partition=raw_file,
        counts={**counts, "num_tokens": sum(counts.values())},
        files={LOSS_MASK_NAME: checksum(mask)} if mask.is_file() else {},
    )
    return Split(folder, manifest, TokenShard(folder, manifest))


def _write_tables(spans: pa.Table, folder: Path, kept: Sequence[str]) -> None:
    """Write of documents.parquet what an export is made of, spans.parquet and the columns that are
    kept, with a document for each span; characters, which the export does not tell, are zero."""
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    num_tokens = to_numpy(spans["num_tokens"])
    columns: dict[str, Any] = {name: spans[name].combine_chunks() for name in spans.schema.names}
    columns["token_start"] = columns["token_offset"] = np.cumsum(num_tokens) - num_tokens
    columns["document"] = np.arange(len(spans))
    columns["num_documents"] = np.ones_like(num_tokens)
    columns["num_chars"] = np.zeros_like(num_tokens)
    columns["is_cut"] = to_numpy(spans["char_start"]) > 0
    of_documents = [DOCUMENTS_SCHEMA.field(name) for name in ("row", "token_offset", "num_tokens")]
    schemas = {DOCUMENTS_NAME: pa.schema(of_documents), SPANS_NAME: SPANS_SCHEMA}
    if kept:
        schemas[KEPT_NAME] = pa.schema([pa.field(name, pa.string()) for name in kept])
    for name, schema in schemas.items():
        pq.write_table(make_table(columns, schema), folder / name, **parquet_options(schema))


def _in_document_order(entries: Columns, raw_file: str, seed: int | None, export: Path) -> Columns:
    """Return the entries of a raw file as its documents have them, each token in one entry only:
    documents in the order of the file, or of the seed that they were shuffled with.

    An entry that begins before the end of the one before it, as where sequences overlap, loses what
    stands there already.
    """
    keys = [entries[name] for name in ("token_in_piece", "char_start", "row")]
    if seed is not None:
        keys.append(document_keys(Origins([raw_file], [0]), entries["row"], seed))
    order = np.lexsort(keys)
    entries = {name: values[order] for name, values in entries.items()}
    start, stop = entries["token_in_piece"], entries["token_in_piece"] + entries["num_tokens"]
    is_first = _begins_span(entries)
    # Where the entries before it in its span end; a larger key per span keeps spans apart.
    span = np.cumsum(is_first)
    far = int(stop.max(initial=0)) + 1
    reached = np.maximum.accumulate(span * far + stop) - span * far
    before = np.concatenate([np.zeros(1, dtype=np.int64), reached])[:-1]
    before = np.where(is_first, 0, before)
    is_gap = start > before
    if is_gap.any():
        at = int(np.argmax(is_gap))
        raise ConfigError(
            where=f"{export}: {raw_file}, document {entries['row'][at]:,}, token {before[at]:,}",
            expected="the tokens of a document up to its end or to where it was cut",
            found=f"none before token {start[at]:,}",
            remedy="convert an export that dropped no beginning of a document, as "
            "`truncation_side: left` does",
        )
    known = np.minimum(before - start, entries["num_tokens"])
    entries["position"] = entries["position"] + known
    entries["token_in_piece"] = start + known
    entries["num_tokens"] = entries["num_tokens"] - known
    is_some = entries["num_tokens"] > 0
    return {name: values[is_some] for name, values in entries.items()}


def _begins_span(entries: Columns) -> npt.NDArray[np.bool_]:
    is_first = np.ones(len(entries["row"]), dtype=bool)
    is_first[1:] = (np.diff(entries["row"]) != 0) | (np.diff(entries["char_start"]) != 0)
    return is_first

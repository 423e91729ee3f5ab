"""The parts of an export, put together again from its own files and its index.

For who has an export and wants another format of it: the token shards and the raw files it was
made from may be gone, or on another machine.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tokflow.errors import ConfigError, CorruptOutputError
from tokflow.exports import INDEX_NAME, Export, Part
from tokflow.exports.part import make_parts
from tokflow.sequences.packing import PackingConfig
from tokflow.sequences.segments import open_sequences, write_sequences
from tokflow.split.spans import SPANS_NAME, SPANS_SCHEMA, TokenSource, open_split
from tokflow.store.arrow import make_table, repeated, to_numpy
from tokflow.store.manifest import FileEntry, Manifest, Recipe, checksum, write_manifest
from tokflow.store.outputs import StoredOutput, read_output
from tokflow.store.tables import Columns, parquet_options
from tokflow.tokens.document_table import DOCUMENTS_SCHEMA
from tokflow.tokens.shard import open_token_shard
from tokflow.tokens.writer import DOCUMENTS_NAME, LOSS_MASK_NAME, TOKENS_NAME

TOKENS_AT_ONCE = 2_048 * 2_048
"""Tokens copied at one go."""

RUN_COLUMNS = ("position", "num_tokens", "row", "char_start", "token_in_piece")


def gather_parts(found: StoredOutput, packing: PackingConfig | None, folder: Path) -> list[Part]:
    """Return what another export of the same tokens is made from; its files are in `folder`.

    The documents have the order of their raw files again, each token stands once, and what the
    export did not hold (dropped tokens, documents of no tokens) is not there. `packing` makes
    sequences; None is for formats that need none. `folder` must stay as long as the parts do.

    Raises: ConfigError for a format that is never read, and where the beginning of a document was
    dropped; CorruptOutputError where the files hold more or less than their manifest says.
    """
    details = found.manifest.details
    flat = {name: _flat(found, name, folder) for name in details["parts"]}
    splits, sequences = [], []
    with _Index(found) as index:
        for number, raw_file in enumerate(index.raw_files):
            of_file = folder / f"{number:06d}"
            runs = index.runs(raw_file, flat)
            split_folder = _write_file(found, flat, raw_file, runs, of_file)
            split = open_split(
                read_output(split_folder), open_token_shard(read_output(of_file / "tokens"))
            )
            splits.append(split)
            if packing is not None:
                rows = of_file / "sequences"
                rows.mkdir()
                write_sequences(split, packing, rows, dataset=found.manifest.dataset)
                sequences.append(open_sequences(read_output(rows), split))
    return make_parts(
        details["parts"],
        details,
        splits=splits,
        sequences_of=sequences,
        packing=packing or PackingConfig(),
    )


@dataclass(frozen=True, slots=True)
class _Flat:
    """All positions of a part as one array, padding included."""

    token_ids: TokenSource
    loss_mask: TokenSource | None


def _flat(found: StoredOutput, part: str, folder: Path) -> _Flat:
    """Return a part's positions, copied into flat files of `folder`."""
    manifest = found.manifest
    has_mask = f"{part}.num_loss_tokens" in manifest.counts
    dtypes = {"token_ids": np.dtype(manifest.details["dtype"])}
    dtypes |= {"loss_mask": np.dtype(np.uint8)} if has_mask else {}
    paths = {name: folder / f"{part}.{name}" for name in dtypes}
    files = {name: path.open("wb") for name, path in paths.items()}
    try:
        for fields in Export(found.folder, manifest).read(part):
            for name, file in files.items():
                values = fields[name].reshape(-1)
                for start in range(0, len(values), TOKENS_AT_ONCE):
                    some = values[start : start + TOKENS_AT_ONCE].astype(dtypes[name], copy=False)
                    file.write(np.ascontiguousarray(some).data.cast("B"))
    finally:
        for file in files.values():
            file.close()
    _check_size(found, part, paths["token_ids"].stat().st_size // dtypes["token_ids"].itemsize)
    sources = {name: _mapped(path, dtypes[name]) for name, path in paths.items()}
    return _Flat(sources["token_ids"], sources.get("loss_mask"))


def _check_size(found: StoredOutput, part: str, num_read: int) -> None:
    counts = found.manifest.counts
    expected = counts[f"{part}.num_tokens"] + counts.get(f"{part}.num_padding", 0)
    if num_read != expected:
        raise CorruptOutputError(
            where=f"{found.folder}: {part}",
            expected=f"{expected:,} tokens, padding among them",
            found=f"{num_read:,}",
            remedy="run `tokflow verify` on it, and make it again",
        )


def _mapped(path: Path, dtype: np.dtype[Any]) -> TokenSource:
    none = np.zeros(0, dtype=dtype)
    if path.stat().st_size == 0:
        return TokenSource(none, none)
    return TokenSource(np.asarray(np.memmap(path, dtype=dtype, mode="r")), none)


GROUPS_KEPT = 16
"""Row groups of the index in memory: neighbouring files are in the same ones, of each part those
of whole rows and those of tails. 5 MB each."""


class _Index:
    """The index of an export, opened once; by raw file and part."""

    def __init__(self, found: StoredOutput) -> None:
        path = found.folder / INDEX_NAME
        self._file = pq.ParquetFile(path, read_dictionary=["part", "raw_file"])
        self._read = lru_cache(maxsize=GROUPS_KEPT)(self._read_group)
        self._groups: dict[str, list[int]] = {}
        for number in range(self._file.num_row_groups):
            for raw_file in self._file.read_row_group(number, columns=["raw_file"])[0].unique():
                self._groups.setdefault(raw_file.as_py(), []).append(number)

    def __enter__(self) -> "_Index":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    @property
    def raw_files(self) -> list[str]:
        """The raw files that it leads to, sorted."""
        return sorted(self._groups)

    def runs(self, raw_file: str, parts: Iterable[str]) -> dict[str, Columns]:
        """Return the runs of one raw file in each part."""
        taken: dict[str, list[Columns]] = {part: [] for part in parts}
        for number in self._groups[raw_file]:
            group = self._read(number)
            taken[group.part].append(group.runs(raw_file))
        none = np.zeros(0, dtype=np.int64)
        return {
            part: {
                name: np.concatenate([none, *(runs[name] for runs in some)]) for name in RUN_COLUMNS
            }
            for part, some in taken.items()
        }

    def _read_group(self, number: int) -> "_Group":
        table = self._file.read_row_group(number).combine_chunks()
        raw_files = table["raw_file"].chunk(0)
        codes = to_numpy(raw_files.indices)
        order = np.argsort(codes, kind="stable")
        names = raw_files.dictionary.to_pylist()
        return _Group(
            part=table["part"][0].as_py(),
            codes={name: code for code, name in enumerate(names)},
            edges=np.searchsorted(codes[order], np.arange(len(names) + 1)),
            columns={name: to_numpy(table[name])[order] for name in RUN_COLUMNS},
        )


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group of the index: runs of one part, those of a raw file together."""

    part: str
    codes: dict[str, int]
    """Of each raw file its ordinal in `edges`."""
    edges: npt.NDArray[np.int64]
    columns: Columns

    def runs(self, raw_file: str) -> Columns:
        """Return the runs of one raw file, in the order of their positions."""
        first, last = self.edges[self.codes[raw_file] :][:2]
        return {name: values[first:last] for name, values in self.columns.items()}


def _write_file(
    found: StoredOutput,
    flat: Mapping[str, _Flat],
    raw_file: str,
    runs_of: Mapping[str, Columns],
    folder: Path,
) -> Path:
    """Write the tokens of one raw file as a token shard and a split; return the split's folder."""
    shard, split = folder / "tokens", folder / "split"
    shard.mkdir(parents=True)
    split.mkdir()
    documents, spans, counts = [], [], {}
    num_tokens = num_documents = 0
    for part in flat:
        runs = _in_document_order(runs_of[part])
        _copy_tokens(flat[part], runs, shard)
        pieces = _pieces(runs, num_tokens)
        documents.append(_documents_table(pieces))
        spans.append(_spans_table(pieces, part, num_documents))
        counts[f"{part}.num_tokens"] = int(pieces["num_tokens"].sum())
        num_tokens += counts[f"{part}.num_tokens"]
        num_documents += len(pieces["row"])
    pq.write_table(pa.concat_tables(documents), shard / DOCUMENTS_NAME)
    pq.write_table(pa.concat_tables(spans), split / SPANS_NAME, **parquet_options(SPANS_SCHEMA))
    _write_manifests(found, raw_file, folder, counts, num_tokens)
    return split


def _in_document_order(runs: Columns) -> Columns:
    """Return the runs as their documents have them, each token in one run only.

    A run that begins before the end of the one before it, as where rows overlap, loses what
    stands there already.
    """
    order = np.lexsort([runs[name] for name in ("token_in_piece", "char_start", "row")])
    runs = {name: values[order] for name, values in runs.items()}
    start, stop = runs["token_in_piece"], runs["token_in_piece"] + runs["num_tokens"]
    # What comes before a run of the same piece; a larger key per piece keeps pieces apart.
    piece = np.cumsum(_begins_piece(runs))
    far = int(stop.max(initial=0)) + 1
    reached = np.maximum.accumulate(piece * far + stop) - piece * far
    before = np.concatenate([np.zeros(1, dtype=np.int64), reached])[:-1]
    before = np.where(_begins_piece(runs), 0, before)
    is_gap = start > before
    if is_gap.any():
        at = int(np.argmax(is_gap))
        raise ConfigError(
            where=f"document {runs['row'][at]:,}: token {before[at]:,}",
            expected="the tokens of a document up to its end or to where it was cut",
            found=f"none before token {start[at]:,}",
            remedy="convert an export that dropped no beginning of a document",
        )
    known = np.minimum(before - start, runs["num_tokens"])
    runs["position"] = runs["position"] + known
    runs["token_in_piece"] = start + known
    runs["num_tokens"] = runs["num_tokens"] - known
    is_some = runs["num_tokens"] > 0
    return {name: values[is_some] for name, values in runs.items()}


def _begins_piece(runs: Columns) -> npt.NDArray[np.bool_]:
    is_first = np.ones(len(runs["row"]), dtype=bool)
    is_first[1:] = (np.diff(runs["row"]) != 0) | (np.diff(runs["char_start"]) != 0)
    return is_first


def _copy_tokens(flat: _Flat, runs: Columns, shard: Path) -> None:
    for source, name in ((flat.token_ids, TOKENS_NAME), (flat.loss_mask, LOSS_MASK_NAME)):
        if source is None:
            continue
        with (shard / name).open("ab") as file:
            for run in source.batches(runs["position"], runs["num_tokens"], TOKENS_AT_ONCE):
                file.write(run.data.cast("B"))


def _pieces(runs: Columns, first_token: int) -> Columns:
    """Return row, char_start, token_offset and num_tokens of each document or cut piece."""
    first = np.flatnonzero(_begins_piece(runs))
    num_tokens = np.add.reduceat(runs["num_tokens"], first) if len(first) else first
    return {
        "row": runs["row"][first],
        "char_start": runs["char_start"][first],
        "token_offset": first_token + np.cumsum(num_tokens) - num_tokens,
        "num_tokens": num_tokens,
    }


def _documents_table(pieces: Columns) -> pa.Table:
    """Return documents.parquet of the pieces; what the export does not tell is zero."""
    num = len(pieces["row"])
    zero = np.zeros(num, dtype=np.int64)
    hashes = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), num, [None, pa.py_buffer(bytes(16 * num))]
    )
    columns = {
        "row": pieces["row"],
        "char_offset": zero,
        "num_chars": zero,
        "token_offset": pieces["token_offset"],
        "num_tokens": pieces["num_tokens"],
        "text_hash": hashes,
    }
    return make_table(columns, DOCUMENTS_SCHEMA)


def _spans_table(pieces: Columns, part: str, first_document: int) -> pa.Table:
    """Return one span for neighbours that begin at their document's first character, and one for
    each other piece."""
    is_cut = pieces["char_start"] > 0
    is_new = np.ones(len(is_cut), dtype=bool)
    is_new[1:] = is_cut[1:] | is_cut[:-1]
    first = np.flatnonzero(is_new)
    num = len(first)
    ends = np.concatenate([first, [len(is_cut)]])[1:]
    tokens_before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(pieces["num_tokens"])])
    columns = {
        "part": repeated(part, num),
        "document": first_document + first,
        "num_documents": ends - first,
        "char_start": pieces["char_start"][first],
        "num_chars": np.zeros(num, dtype=np.int64),
        "token_start": pieces["token_offset"][first],
        "num_tokens": tokens_before[ends] - tokens_before[first],
        "is_cut": is_cut[first],
    }
    return make_table(columns, SPANS_SCHEMA)


def _write_manifests(
    found: StoredOutput, raw_file: str, folder: Path, counts: dict[str, int], num_tokens: int
) -> None:
    manifest = found.manifest
    parents = {"export": manifest.fingerprint}
    for stage, of_stage in (("tokens", {"num_tokens": num_tokens}), ("split", counts)):
        made = Manifest(
            recipe=Recipe(stage=stage, version=manifest.version, config={}, parents=parents),
            dataset=manifest.dataset,
            partition=raw_file,
            counts=of_stage,
            details=manifest.details,
            files=_masks(folder / stage),
        )
        write_manifest(folder / stage, made, run={})


def _masks(folder: Path) -> dict[str, FileEntry]:
    """Return the entry by which a shard is known to be of chats.

    The other files are gone with this process: nobody compares their checksums.
    """
    path = folder / LOSS_MASK_NAME
    return {LOSS_MASK_NAME: checksum(path)} if path.is_file() else {}

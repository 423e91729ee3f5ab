"""A split on disk: for each part, the spans of documents that belong to it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.split.permutation import document_keys, shuffle_fields, shuffle_seed_of
from tokflow.split.rule import (
    NO_PART,
    FilePosition,
    FileSpans,
    Form,
    PartConfig,
    Scope,
    SplitConfig,
    assign_parts,
    span_counts,
)
from tokflow.store.integrity import clear_when_damaged, is_compared
from tokflow.store.manifest import Manifest, Recipe, checksums, write_manifest
from tokflow.store.store import InStore, StoredOutput
from tokflow.store.streams import HashedWriter
from tokflow.store.tables import (
    Columns,
    make_table,
    parquet_options,
    read_part,
    read_parts,
    to_arrow,
    to_numpy,
    to_texts,
)
from tokflow.strata.stage import NO_STRATUM, Strata, divided
from tokflow.tokens import TokenSource, positions_of_runs
from tokflow.tokens.shard import TokenShard

SPLIT_VERSION = 3
"""Raised when the same input would give other bytes."""

NOT_IN_STRATA = "no_stratum"
"""The name that counts give to the text of parts that no stratum takes, which is in no part."""

SPANS_NAME = "spans.parquet"

CUT_TOKENS_NAME = "cut_tokens.bin"
"""Tokens of cut documents, each span encoded by itself."""

CUT_LOSS_MASK_NAME = "cut_loss_mask.bin"
"""Loss mask of the cut_tokens.bin of a mixture of chats."""

CutEncoder = Callable[[FileSpans, Path], npt.NDArray[np.int64]]
"""Writes the tokens of cut spans into a folder and counts them, as `write_cut_tokens` does."""

_NUMBERS = ("document", "num_documents", "char_start", "num_chars", "token_start", "num_tokens")

SPANS_SCHEMA = pa.schema(
    pa.field(name, type_, nullable=False)
    for name, type_ in (
        ("part", pa.string()),
        *((name, pa.int64()) for name in _NUMBERS),
        ("is_cut", pa.bool_()),
    )
)
"""One row per span of a cut document, and one for neighbouring whole documents of one part; in file
order or, where documents are shuffled, by part and in the order of the shuffle.
document: index of the first in documents.parquet; char_start: code points of that document
before the span, 0 unless it is cut; token_start: in tokens.bin, or past its end, in
cut_tokens.bin."""

SPAN_COLUMNS = ["token_offset", "num_tokens"]
"""The columns of documents.parquet from which spans have their tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartSpans:
    """The spans of one part, in file order unless documents are shuffled: of whole and of cut
    documents; shape (num_spans,)."""

    document: npt.NDArray[np.int64]
    char_start: npt.NDArray[np.int64]
    """Code points of the document before the span."""
    token_start: npt.NDArray[np.int64]
    """The position of its first token in the split's `TokenSource`."""
    num_tokens: npt.NDArray[np.int64]


KEPT_BYTES = 4_000
"""Size of a spans.parquet of few rows, which take 3 kB."""

_kept_part = lru_cache(2**14)(read_part)
clear_when_damaged.append(_kept_part.cache_clear)


@dataclass(frozen=True, slots=True)
class Split(InStore):
    """The split of one file, made from its token shard."""

    stored: StoredOutput
    shard: TokenShard

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts, in the order of the config."""
        return tuple(self.manifest.details["parts"])

    def rows(self, part: str) -> Columns:
        """Return the rows of one part, in order: the columns of SPANS_SCHEMA but `part`. Few rows
        that were compared are kept, since an export reads them for its tokens and again for its
        index."""
        path, columns = self.stored.file(SPANS_NAME), tuple(SPANS_SCHEMA.names[1:])
        is_kept = self.manifest.files[SPANS_NAME].num_bytes <= KEPT_BYTES and is_compared()
        return (_kept_part if is_kept else read_part)(path, part, columns)

    def spans_of_parts(self) -> dict[str, PartSpans]:
        """Return the spans of every part, each of one document; each table is read once."""
        rows = read_parts(self.stored.file(SPANS_NAME), self.parts, SPANS_SCHEMA.names[1:])
        table = self.shard.documents(SPAN_COLUMNS)
        return {part: self.spans(part, table, rows[part]) for part in self.parts}

    def spans(
        self, part: str, documents: pa.Table | None = None, rows: Columns | None = None
    ) -> PartSpans:
        """Return the spans of one part, each of one document.

        `documents`: token_offset and num_tokens of the shard's, and `rows` those of the part, where
        they have been read.
        """
        if rows is None:
            rows = self.rows(part)
        table = self.shard.documents(SPAN_COLUMNS) if documents is None else documents
        counts, is_cut = rows["num_documents"], rows["is_cut"]
        document = positions_of_runs(rows["document"], counts)
        token_start = to_numpy(table["token_offset"])[document]
        num_tokens = to_numpy(table["num_tokens"])[document]
        char_start = np.zeros(len(document), dtype=np.int64)
        cut = (np.cumsum(counts) - counts)[is_cut]  # a cut span is a row of its own
        token_start[cut] = rows["token_start"][is_cut]
        num_tokens[cut] = rows["num_tokens"][is_cut]
        char_start[cut] = rows["char_start"][is_cut]
        return PartSpans(
            document=document, char_start=char_start, token_start=token_start, num_tokens=num_tokens
        )

    def cut_tokens(self) -> npt.NDArray[np.unsignedinteger]:
        """Return the tokens of the spans that are cut, end to end; (0,) where none is."""
        if CUT_TOKENS_NAME not in self.manifest.files:
            return np.zeros(0, dtype=self.shard.dtype)
        return np.fromfile(self.stored.file(CUT_TOKENS_NAME), dtype=self.shard.dtype)

    def token_source(self, *, is_lazy: bool = False) -> TokenSource:
        """Return the tokens that spans point into: those of the shard, memory-mapped, and behind
        their end those of cut spans; `is_lazy` as `TokenShard.tokens`."""
        return TokenSource((*self.shard.tokens(is_lazy=is_lazy).files, self.cut_tokens()))

    @property
    def num_positions(self) -> int:
        """Number of tokens of `token_source`, from the manifests."""
        cut = self.manifest.files.get(CUT_TOKENS_NAME)
        return self.shard.num_tokens + (cut.num_bytes // self.shard.dtype.itemsize if cut else 0)

    def loss_mask_source(self) -> TokenSource | None:
        """Return the loss mask of the tokens, uint8; None where every token counts.

        The documents of a shard with a mask are cut by a mixture alone.
        """
        if not self.shard.has_loss_mask:
            return None
        mask = self.shard.loss_mask()
        if CUT_LOSS_MASK_NAME not in self.manifest.files:
            return mask
        cut = np.fromfile(self.stored.file(CUT_LOSS_MASK_NAME), dtype=np.uint8)
        return TokenSource((*mask.files, cut))


def split_recipe(
    config: SplitConfig, position: FilePosition, key: str, *, shuffle_seed: int | None = None
) -> Recipe:
    """Return the recipe of the split of the token shard of a raw file, without its parents, which
    are the shard and selections of its documents: its config has the fields, of the split and of
    the file's position, that can change a byte of it."""
    parts = []
    for name, part in config.parts.items():
        own, is_empty = part.model_dump(exclude_none=True), 0 in (part.characters, part.documents)
        if is_empty or not part.start:
            own.pop("start", None)
        parts.append([name, own])
    fields: dict[str, Any] = {"parts": parts}  # their order counts
    decides = _DECIDING_POSITION.get(config.form, ())
    taken = [(start, stop) for start, stop in config.ranges().values() if start != stop]
    if config.is_drawn:
        fields["seed"] = config.seed
        if config.form == "fraction" and config.scope == "file":
            fields["key"] = key
        elif config.form == "fraction":
            fields["position"] = {name: getattr(position, name) for name in decides}
    elif any(map(any, taken)):  # begins or ends between two characters, or documents
        before = {name: num for name in decides if (num := getattr(position, name))}
        fields |= {"position": before} if before else {}
        fields |= {"boundary": config.boundary} if config.form == "characters" else {}
    if shuffle_seed is not None:
        fields |= {"key": key} | shuffle_fields(shuffle_seed)
    return Recipe(stage="split", version=SPLIT_VERSION, config=fields, parents={})


def write_split(
    shard: TokenShard,
    folder: Path,
    *,
    dataset: str,
    recipe: Recipe,
    encode_cut: CutEncoder,
    selections: Sequence[npt.NDArray[np.bool_]] = (),
    strata: Sequence[Strata] = (),
) -> None:
    """Write the split of one file, as the recipe has it, into the empty `folder`, manifest last; no
    token is copied.

    `encode_cut` tokenizes cut spans again.
    `selections`: (num_documents,) each; what one leaves out is in no part, and is not counted where
    parts begin and end. `strata` divide each part; text of none of them is in no part.

    Raises: CorruptOutputError where documents.parquet or the tokenizer is damaged.
    """
    started, (config, position) = time.perf_counter(), config_of_split(recipe)
    columns = ["char_offset", "num_chars", *SPAN_COLUMNS]
    table = shard.documents(columns + ["text_hash"] * (config.form == "hash_fraction"))
    known = config, shard.origins.raw_files[0], position
    spans = (
        _spans_of_selected(table, selections, *known) if selections else assign_parts(table, *known)
    )
    parts, undivided = tuple(config.parts), spans
    for of in strata:
        code = of.codes[spans.document].astype(np.int64)
        is_taken = (spans.part != NO_PART) & (code != NO_STRATUM)
        code = np.where(is_taken, spans.part * len(of.names) + code, NO_PART)
        parts, spans = divided(parts, of.names), replace(spans, part=code)
    num_tokens = to_numpy(table["num_tokens"])[spans.document]
    if spans.is_cut.any():
        num_tokens = np.where(spans.is_cut, encode_cut(spans, folder), num_tokens)
    write_spans(
        spans,
        num_tokens,
        table,
        shard,
        folder,
        recipe=recipe,
        dataset=dataset,
        parts=parts,
        started=started,
        counts=_in_no_stratum(undivided, spans, num_tokens) if strata else {},
    )


def write_spans(
    spans: FileSpans,
    num_tokens: npt.NDArray[np.int64],
    table: pa.Table,
    shard: TokenShard,
    folder: Path,
    *,
    recipe: Recipe,
    dataset: str,
    parts: tuple[str, ...],
    started: float,
    counts: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Write the spans that parts take, as they are given or, of each part, in the order of the seed
    that the recipe has of documents; then the manifest, with these `counts` beside those of the
    spans."""
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    order = np.flatnonzero(spans.part != NO_PART)
    if (seed := shuffle_seed_of(recipe)) is not None:
        rows_of = to_numpy(shard.documents(["row"])["row"])
        keys = document_keys(shard.origins, rows_of, seed)
        order = order[np.lexsort((keys[spans.document[order]], spans.part[order]))]
    rows = _span_table(spans, order, table, num_tokens, shard.num_tokens, parts)
    with HashedWriter(folder / SPANS_NAME) as file:
        pq.write_table(rows, file, **parquet_options(SPANS_SCHEMA))
    files = {SPANS_NAME: file.entry()}
    manifest = Manifest(
        recipe=recipe,
        dataset=dataset,
        partition=shard.manifest.partition,
        counts={**span_counts(spans, num_tokens, parts), **counts},
        details={"parts": list(parts), "dtype": shard.dtype.str},
        files=checksums(folder, known=files) if spans.is_cut.any() else files,
    )
    write_manifest(folder, manifest, run={"seconds": round(time.perf_counter() - started, 3)})


def _in_no_stratum(
    undivided: FileSpans, spans: FileSpans, num_tokens: npt.NDArray[np.int64]
) -> dict[str, int]:
    """Count what parts would take that is in no stratum."""
    lost = (undivided.part != NO_PART) & (spans.part == NO_PART)
    of_lost = replace(spans, part=np.where(lost, 0, NO_PART))
    counts = span_counts(of_lost, num_tokens, (NOT_IN_STRATA,))
    return {of: num for of, num in counts.items() if of.startswith(NOT_IN_STRATA)}


def _spans_of_selected(
    table: pa.Table,
    selections: Sequence[npt.NDArray[np.bool_]],
    config: SplitConfig,
    key: str,
    position: FilePosition,
) -> FileSpans:
    """Return the spans of all documents: those that all selections take in parts as if they were
    alone, the rest in no part."""
    selected = np.logical_and.reduce(selections)
    num_chars, left_out = to_numpy(table["num_chars"]), np.flatnonzero(~selected)
    offsets = np.cumsum(num_chars[selected]) - num_chars[selected]
    at = table.schema.get_field_index("char_offset")
    chosen = table.filter(to_arrow(selected)).set_column(at, "char_offset", to_arrow(offsets))
    spans = assign_parts(chosen, config, key, position)
    document = np.concatenate([np.flatnonzero(selected)[spans.document], left_out])
    order = np.argsort(document, kind="stable")
    zeros = np.zeros_like(left_out)
    added = {
        "char_start": zeros,
        "num_chars": num_chars[left_out],
        "part": zeros + NO_PART,
        "is_cut": zeros.astype(bool),
    }
    both = {name: np.concatenate([getattr(spans, name), of]) for name, of in added.items()}
    return FileSpans(document=document[order], **{name: of[order] for name, of in both.items()})


def config_of_split(recipe: Recipe) -> tuple[SplitConfig, FilePosition]:
    """Return the config that a split is made by, and what it has to know of other files."""
    fields = {name: of for name, of in recipe.config.items() if name in ("seed", "boundary")}
    position = recipe.config.get("position")
    parts = {name: PartConfig(**part) for name, part in recipe.config["parts"]}
    scope: Scope = "file" if position is None else "dataset"
    return SplitConfig(parts=parts, scope=scope, **fields), FilePosition(**(position or {}))


_DECIDING_POSITION: dict[Form, tuple[str, ...]] = {
    "characters": ("first_char",),
    "documents": ("first_document",),
    "fraction": ("first_document", "total_documents"),
}
"""The parts of a file's position that decide its split, by form."""


def _span_table(
    spans: FileSpans,
    order: npt.NDArray[np.int64],
    table: pa.Table,
    num_tokens: npt.NDArray[np.int64],
    num_shard_tokens: int,
    names: tuple[str, ...],
) -> pa.Table:
    """Return the spans that parts take, in an order of them, neighbouring whole documents of one
    part as one row."""
    is_kept = spans.part != NO_PART
    token_start = to_numpy(table["token_offset"])[spans.document]
    cut_before = np.cumsum(np.where(spans.is_cut & is_kept, num_tokens, 0))
    in_cut = num_shard_tokens + cut_before - num_tokens
    token_start = np.where(spans.is_cut, in_cut, token_start)
    part, is_cut = spans.part[order], spans.is_cut[order]
    if len(part) == 0:
        return pa.Table.from_batches([], schema=SPANS_SCHEMA)
    document = spans.document[order]
    is_new = np.ones(len(part), dtype=bool)
    is_new[1:] = (part[1:] != part[:-1]) | is_cut[1:] | is_cut[:-1]
    is_new[1:] |= document[1:] != document[:-1] + 1
    is_new[1:] |= token_start[order][1:] != (token_start + num_tokens)[order][:-1]
    first = np.flatnonzero(is_new)
    return make_table(
        {
            "part": to_texts(names).cast(pa.string()).take(to_arrow(part[first])),
            "document": document[first],
            "num_documents": np.add.reduceat(np.ones(len(part), dtype=np.int64), first),
            "char_start": spans.char_start[order][first],
            "num_chars": np.add.reduceat(spans.num_chars[order], first),
            "token_start": token_start[order][first],
            "num_tokens": np.add.reduceat(num_tokens[order], first),
            "is_cut": is_cut[first],
        },
        SPANS_SCHEMA,
    )

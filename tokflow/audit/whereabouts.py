"""Documents of a dataset in exports, its own and those of mixtures, and in token stores: where
their tokens are, or why they are not."""

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokflow.audit.ancestry import Ancestry
from tokflow.audit.found_documents import FoundDocument, documents_with, pieces_of
from tokflow.audit.verify.excluded import entries_of, is_latest
from tokflow.errors import MissingOutputError
from tokflow.exports import INDEX_NAME, Export
from tokflow.exports.index import INDEX_SCHEMA, scan_index
from tokflow.exports.reading import is_export
from tokflow.sequences import PackingConfig
from tokflow.split import Split
from tokflow.split.mixed_split import origin_of, own_dataset
from tokflow.split.mixture import dataset_of
from tokflow.store.integrity import check_files
from tokflow.store.manifest import Manifest
from tokflow.store.store import StoredOutput
from tokflow.store.tables import to_arrow, to_numpy
from tokflow.tokens.shard import TokenShard

LOSES = {"overlong": "split", "tail": "pad", "min_sample_length": 1, "drop_unsupervised": False}
"""Fields of a packing that can leave out tokens, with the values by which they leave out none."""


OF_PLACE = ("raw_file", "row", "part", "char_start")


@dataclass(frozen=True, slots=True)
class HeldTokens:
    """Neighbouring tokens of a document in a part of an export; fields as its index has them."""

    part: str
    """Empty of a token store."""
    position: int
    """Position of the first in the part; in a format of sequences, sequence times length plus
    column."""
    num_tokens: int
    raw_file: str
    """The name of its raw file there: in a mixture `web/a.jsonl`, of its second pass
    `web@2/a.jsonl`."""
    row: int
    """The ordinal of the document in the raw file, as that was when this was made."""
    char_start: int
    """Code points of the document before the text that was tokenized; 0 unless the split cut it."""
    token_in_piece: int
    """Tokens of that text before these."""
    sequence: int | None = None
    """The row that has them, from 0; None of a stream."""
    column: int | None = None
    """The token of the row that the first of them is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Tokens of a document in an export, and why it lacks others."""

    output: str
    """`web/exports/bin`; of an older build `web/exports/bin/0123456789abcdef`."""
    tokens: Sequence[HeldTokens]
    why_not: str | None
    """Reason why it lacks tokens of the document, or all; None where it has those of all parts."""


class Holders:
    """Finds documents of one dataset in outputs; each table is read once."""

    def __init__(self, ancestry: Ancestry, documents: Sequence[FoundDocument]) -> None:
        self._ancestry, self._documents = ancestry, documents
        self._splits: dict[tuple[Path, str], Split | None] = {}
        self._tables: dict[tuple[Path, str], pa.Table] = {}
        self._places: dict[tuple[Path, int], dict[bytes, list[tuple[str, int]]]] = {}

    def in_export(self, stored: StoredOutput) -> list[Holder]:
        """Return what an export has of each document."""
        folder = stored.folder.parent if is_latest(stored) else stored.folder
        name = folder.relative_to(stored.store.root).as_posix()
        each = zip(self._documents, self.held(stored), strict=True)
        return [
            Holder(output=name, tokens=held, why_not=self._why_not(stored, document, held))
            for document, held in each
        ]

    def held(self, stored: StoredOutput) -> list[list[HeldTokens]]:
        """Return the tokens of each of the documents in an export, or in a token store. One that
        had another row when that was made is found there by its text.

        Raises: CorruptOutputError where a table is damaged.
        """
        if not is_export(stored.manifest):
            shard = self._ancestry.shard(stored)
            return [[*self._in_shard(shard, document)] for document in self._documents]
        if not stored.store.is_far(stored, INDEX_NAME):
            check_files(stored, only={INDEX_NAME})
        numbers = {
            (document.dataset, document.raw_file, row): number
            for number, document in enumerate(self._documents)
            for _, rows in self._splits_with(stored, document)
            for row in rows
        }
        found: list[list[HeldTokens]] = [[] for _ in self._documents]
        own, export = own_dataset(stored.manifest), Export(stored)
        lengths = {part: export.of_part(part).sequence_length for part in export.parts}
        tables = scan_index(stored, INDEX_SCHEMA.names) if numbers else ()
        for entry in entries_of(tables, numbers, own):
            length = lengths[entry["part"]]
            row = divmod(entry["position"], length) if length else (None, None)
            place = *origin_of(entry["raw_file"], own), entry["row"]
            held = HeldTokens(**entry, sequence=row[0], column=row[1])
            found[numbers[place]].append(held)
        return found

    def documents(self, shard: TokenShard) -> pa.Table:
        """Return all columns of the documents of a shard."""
        key = shard.folder, f"{shard.num_passes} passes"
        if key not in self._tables:
            self._tables[key] = shard.documents()
        return self._tables[key]

    def pieces_of_rows(
        self, split: Split, raw_files: Container[str], rows: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Return the pieces, as of `pieces_of`, of some rows of some raw files in a split."""
        if (key := (split.folder, "pieces")) not in self._tables:
            self._tables[key] = pieces_of(split)
        table = self._tables[key]
        found = table.filter(to_arrow(np.isin(to_numpy(table["row"]), rows))).to_pylist()
        return [of for of in found if of["raw_file"] in raw_files]

    def _in_shard(self, shard: TokenShard, document: FoundDocument) -> Iterator[HeldTokens]:
        name = document.raw_file
        if shard.manifest.dataset == document.dataset and name in shard.origins.raw_files:
            table = self.documents(shard)
            for row in self._rows_in(shard, name, document):
                at = int(np.searchsorted(to_numpy(table["row"]), shard.origins.row_of(name, row)))
                start, num = (table[of][at].as_py() for of in ("token_offset", "num_tokens"))
                yield HeldTokens("", start, num, name, row, char_start=0, token_in_piece=0)

    def _splits_with(
        self, stored: StoredOutput, document: FoundDocument
    ) -> Iterator[tuple[Split | None, list[int]]]:
        """Yield the splits of an export that can have a document, several where strata of a dataset
        are sources of a mixture, and its rows there; None, and no rows, where the store no longer
        has the split: what was at its row then may be another document."""
        names = [document.raw_file] * (stored.manifest.dataset == document.dataset)
        own = [of for of in _sources(stored) if dataset_of(of) == document.dataset]
        for name in [f"{of}/{document.raw_file}" for of in own] or names:
            if (key := (stored.folder, name)) not in self._splits:
                self._splits[key] = None
                with suppress(MissingOutputError):
                    self._splits[key] = self._ancestry.split_of(stored, name)
            split = self._splits[key]
            yield split, self._rows_in(split.shard, name, document) if split else []

    def _rows_in(self, shard: TokenShard, name: str, document: FoundDocument) -> list[int]:
        """Return the rows of a raw file of a shard that have a document: its own, if that has its
        text, else all that have."""
        if shard.manifest.recipe.fingerprint == document.shard.manifest.recipe.fingerprint:
            return [document.row]
        if (key := (shard.folder, shard.num_passes)) not in self._places:
            self._places[key] = documents_with(shard, {of.text_hash for of in self._documents})
        each = self._places[key].get(document.text_hash, ())
        there = [row for file, row in each if file == name]
        return [document.row] if document.row in there else there

    def _why_not(
        self, stored: StoredOutput, document: FoundDocument, held: Sequence[HeldTokens]
    ) -> str | None:
        """Return why an export lacks tokens of a document; None where it has those of all parts."""
        pieces, lacks = [], []
        for split, rows in self._splits_with(stored, document):
            if split is not None:
                passes = split.shard.origins.raw_files
                of_source = own_dataset(stored.manifest)
                own = [of for of in passes if origin_of(of, of_source)[1] == document.raw_file]
                pieces += self.pieces_of_rows(split, own, rows)
        if not pieces:
            lost = "it was made without this text, or the store no longer has what it was made from"
            return None if held else lost
        if not any(of["part"] for of in pieces):
            is_mixed = bool(_sources(stored))
            return "the mixture does not take it" if is_mixed else "it was in no part"
        for piece in (of for of in pieces if of["part"]):
            place = [piece[name] for name in OF_PLACE]
            spans = [
                (of.token_in_piece, of.token_in_piece + of.num_tokens)
                for of in held
                if [getattr(of, name) for name in OF_PLACE] == place
            ]
            if num := piece["num_tokens"] - _covered(spans):
                reasons = _reasons(stored.manifest, piece["part"]) or "it is damaged"
                of_all = f"{num:,} of {piece['num_tokens']:,} tokens"
                lacks.append(f"{of_all} in {piece['part']} are in no row: {reasons}")
        return "; ".join(dict.fromkeys(lacks)) or None


def _sources(stored: StoredOutput) -> Mapping[str, Any]:
    """Return the sources of an export of a mixture; nothing of others."""
    of_mixture: Mapping[str, Any] = stored.manifest.details.get("mixture", {})
    return of_mixture


def _covered(spans: Sequence[tuple[int, int]]) -> int:
    """Return how many numbers are in spans, each counted once."""
    num = end = 0
    for start, stop in sorted(spans):
        num += max(0, stop - max(start, end))
        end = max(end, stop)
    return num


def _reasons(manifest: Manifest, part: str) -> str:
    """Return the fields of the packing of a part that can leave out tokens."""
    packing = PackingConfig(**manifest.recipe.config.get("packing", {})).of_part(part)
    set_ = {name: getattr(packing, name) for name in LOSES}
    return ", ".join(f"{name}: {of}" for name, of in set_.items() if of != LOSES[name])

"""Documents of a dataset in exports, its own and those of mixtures, and in token stores: where
their tokens are, or why they are not."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokflow.audit.ancestry import Ancestry
from tokflow.audit.dataframes import pieces_of
from tokflow.audit.found_documents import FoundDocument
from tokflow.errors import MissingOutputError
from tokflow.exports import INDEX_NAME, Export
from tokflow.exports.index import read_documents
from tokflow.exports.reading import is_export
from tokflow.exports.stage import EXPORT
from tokflow.sequences.config import PackingConfig
from tokflow.split.mixed_split import source_and_key
from tokflow.split.mixture import dataset_of
from tokflow.split.spans import Split
from tokflow.store.integrity import check_files
from tokflow.store.links import LATEST, resolved
from tokflow.store.manifest import Manifest
from tokflow.store.store import Store, StoredOutput
from tokflow.store.stored_outputs import made_in
from tokflow.store.tables import to_arrow, to_numpy
from tokflow.tokens.shard import TokenShard

LOSES = {"overlong": "split", "tail": "pad", "min_sample_length": 1, "drop_unsupervised": False}
"""Fields of a packing that can leave out tokens, with the values by which they leave out none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldTokens:
    """Neighbouring tokens of a document in a part of an export."""

    part: str
    """Empty of a token store."""
    raw_file: str
    """The name of its raw file there: in a mixture `web/a.jsonl`, of its second pass
    `web@2/a.jsonl`."""
    row: int
    """The ordinal of the document in the raw file, as that was when this was made."""
    char_start: int
    """Code points of the document before the text that was tokenized; 0 unless the split cut it."""
    token_in_text: int
    """Tokens of that text before these."""
    position: int
    """Position of the first in the part; in a format of sequences, sequence times length plus
    column."""
    num_tokens: int
    sequence: int | None = None
    """The row that has them, from 0; None of a stream."""
    column: int | None = None
    """The token of the row that the first of them is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """What an export has of a document."""

    output: str
    """`web/exports/bin`; of an older build `web/exports/bin/0123456789abcdef`."""
    tokens: Sequence[HeldTokens]
    why_not: str | None
    """Reason why it lacks tokens of the document, or all; None where it has those of all parts."""


def exports_with(store: Store, dataset: str) -> Iterator[tuple[str, StoredOutput]]:
    """Yield the exports of a dataset in a store, and those of mixtures with it, older builds too,
    each behind its name."""
    store.refresh(store.root)
    for folder in sorted(store.root.glob(f"*/{EXPORT.path}/*")):
        latest, name = resolved(folder / LATEST), folder.relative_to(store.root).as_posix()
        for stored in made_in(store, folder):
            if has_documents_of(stored.manifest, dataset):
                is_latest = stored.folder.resolve() == latest
                yield name if is_latest else f"{name}/{stored.folder.name}", stored


def has_documents_of(manifest: Manifest, dataset: str) -> bool:
    """Return whether an output can have documents of a dataset."""
    return dataset in (manifest.dataset, *map(dataset_of, _sources(manifest)))


def _sources(manifest: Manifest) -> Sequence[str]:
    """Return the names of the sources of an export of a mixture."""
    return [*manifest.details.get("mixture", ())]


class Holders:
    """Finds documents in outputs; each table is read once."""

    def __init__(self, ancestry: Ancestry) -> None:
        self._ancestry = ancestry
        self._splits: dict[tuple[Path, str], Split | None] = {}
        self._tables: dict[tuple[Path, str], pa.Table] = {}

    def in_export(
        self, name: str, stored: StoredOutput, documents: Sequence[FoundDocument]
    ) -> list[Holder]:
        """Return what an export of this name has of each document."""
        each = zip(documents, self.held(stored, documents), strict=True)
        return [
            Holder(output=name, tokens=held, why_not=self._why_not(stored, document, held))
            for document, held in each
        ]

    def held(
        self, stored: StoredOutput, documents: Sequence[FoundDocument]
    ) -> list[list[HeldTokens]]:
        """Return the tokens of each of some documents of one dataset in an export, or in a token
        store. One that had another row when that was made is found there by its text.

        Raises: CorruptOutputError where a table is damaged.
        """
        found: list[list[HeldTokens]] = [[] for _ in documents]
        if not is_export(stored.manifest):
            shard = self._ancestry.shard(stored)
            for tokens, document in zip(found, documents, strict=True):
                tokens += self._in_shard(shard, document)
            return found
        numbers: dict[tuple[str, int], int] = {}
        rows: dict[str, list[int]] = {}
        of_files: dict[str, list[int]] = {}
        for number, document in enumerate(documents):
            of_files.setdefault(document.raw_file, []).append(number)

        def rows_of(name: str) -> list[int]:
            if name not in rows:
                own = of_files.get(_own_file(stored.manifest, documents[0].dataset, name) or "", [])
                split = self._split(stored, name) if own else None
                there = {of: self._rows_there(split, name, documents[of]) for of in own}
                numbers.update({(name, row): of for of, some in there.items() for row in some})
                rows[name] = [row for some in there.values() for row in some]
            return rows[name]

        if not stored.store.is_far(stored, INDEX_NAME):
            check_files(stored, only={INDEX_NAME})
        export = Export(stored)
        for entry in read_documents(stored, rows_of).to_pylist():
            place = entry["raw_file"], entry["row"]
            if (of := numbers.get(place)) is not None:
                length = export.of_part(entry["part"]).sequence_length
                sequence = entry["position"] // length if length else None
                found[of].append(
                    HeldTokens(
                        part=entry["part"],
                        raw_file=place[0],
                        row=place[1],
                        char_start=entry["char_start"],
                        token_in_text=entry["token_in_piece"],
                        position=entry["position"],
                        num_tokens=entry["num_tokens"],
                        sequence=sequence,
                        column=entry["position"] % length if length else None,
                    )
                )
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
                yield HeldTokens(
                    part="",
                    raw_file=name,
                    row=row,
                    char_start=0,
                    token_in_text=0,
                    position=table["token_offset"][at].as_py(),
                    num_tokens=table["num_tokens"][at].as_py(),
                )

    def _split(self, stored: StoredOutput, raw_file: str) -> Split | None:
        """Return the split of an export that has a raw file; None where there is none any more."""
        if (key := (stored.folder, raw_file)) not in self._splits:
            try:
                self._splits[key] = self._ancestry.split_of(stored, raw_file)
            except MissingOutputError:
                self._splits[key] = None
        return self._splits[key]

    def _rows_there(self, split: Split | None, name: str, document: FoundDocument) -> list[int]:
        """Return the rows that a document has in a raw file of a split."""
        return [document.row] if split is None else self._rows_in(split.shard, name, document)

    def _rows_in(self, shard: TokenShard, name: str, document: FoundDocument) -> list[int]:
        if shard.manifest.recipe.fingerprint == document.shard.manifest.recipe.fingerprint:
            return [document.row]
        table = self.documents(shard)
        is_equal = np.array([of == document.text_hash for of in table["text_hash"].to_pylist()])
        files, rows = shard.origins.of_rows(to_numpy(table["row"])[is_equal])
        each = zip(files.to_pylist(), rows.tolist(), strict=True)
        there = [row for file, row in each if file == name]
        return [document.row] if document.row in there else there

    def _why_not(
        self, stored: StoredOutput, document: FoundDocument, held: Sequence[HeldTokens]
    ) -> str | None:
        """Return why an export lacks tokens of a document; None where it has those of all parts."""
        sources = [of for of in _sources(stored.manifest) if dataset_of(of) == document.dataset]
        names = [f"{of}/{document.raw_file}" for of in sources] or [document.raw_file]
        splits = {name: split for name in names if (split := self._split(stored, name))}
        pieces = [
            piece
            for name, split in splits.items()
            for piece in self._pieces_of(document, split, name, stored.manifest)
        ]
        if not pieces:
            lost = "it was made without this text, or the store has no more what it was made from"
            return None if held else lost
        if not (own := [of for of in pieces if of["part"]]):
            taken = f"what the mixture takes of {', '.join(sources)}"
            return f"it is not among {taken}" if sources else "it was in no part"
        lacks = []
        for piece in own:
            place = [piece[name] for name in ("raw_file", "row", "part", "char_start")]
            spans = [
                (of.token_in_text, of.token_in_text + of.num_tokens)
                for of in held
                if [of.raw_file, of.row, of.part, of.char_start] == place
            ]
            if num := piece["num_tokens"] - _covered(spans):
                reasons = _reasons(stored.manifest, piece["part"]) or "it is damaged"
                of_all = f"{num:,} of {piece['num_tokens']:,} tokens"
                lacks.append(f"{of_all} in {piece['part']} are in no row: {reasons}")
        return "; ".join(dict.fromkeys(lacks)) or None

    def _pieces_of(
        self, document: FoundDocument, split: Split, name: str, manifest: Manifest
    ) -> list[dict[str, Any]]:
        """Return the pieces of a document in a split of an export, of all passes of a mixture."""
        passes = {
            of
            for of in split.shard.origins.raw_files
            if _own_file(manifest, document.dataset, of) == document.raw_file
        }
        return self.pieces_of_rows(split, passes, self._rows_there(split, name, document))


def _own_file(manifest: Manifest, dataset: str, name: str) -> str | None:
    """Return the raw file of a dataset that an index names; None where it is of another one."""
    if not _sources(manifest):
        return name if manifest.dataset == dataset else None
    source, key = source_and_key(name)
    return key if dataset_of(source) == dataset else None


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

"""Differences between two exports, datasets or stores, and the inputs that they come from: recipes,
raw files, and documents, compared without a loop over them.

A document is known by raw file and row. It has some tokens in each part, and pieces of its text
begin at some characters. Where these are the same, its tokens are, too, if both sides took it of
one token shard, or made it of one text by one tokenizer in one way; else they are read.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tokflow.audit.ancestry import open_tokenizer
from tokflow.audit.sides import (
    Flags,
    IndexedExport,
    Integers,
    Key,
    Recipes,
    Side,
    key_of,
    new_numbers,
    read_index,
)
from tokflow.audit.token_texts import TokenTexts
from tokflow.errors import ConfigError, UntrustedCodeError
from tokflow.exports import Export
from tokflow.exports.reading import is_export
from tokflow.selection.left_out import rule_against
from tokflow.selection.stage import SELECTION
from tokflow.split import CUT_TOKENS_NAME
from tokflow.split.mixed_split import origin_of, own_dataset
from tokflow.store.store import StoredOutput
from tokflow.store.tables import to_numpy
from tokflow.tokens.shard import places_of
from tokflow.tokens.shard_files import hashes_as_array


def compare(a: Side, b: Side, *, limit: int | None, num_shown: int) -> dict[str, Any]:
    """Return what differs, as plain values for JSON. `limit`: documents of each export at most;
    `num_shown`: those of which tokens are read and decoded.

    Raises: ConfigError where the sides have nothing in common; as `DocumentChanges`.
    """
    pairs = _pairs(a, b)
    alone = [sorted(of.roots.keys() - {pair[at] for pair in pairs}) for at, of in enumerate((a, b))]
    if a.is_one or b.is_one:
        alone = [[], []]
    names = [["/".join(filter(None, key)) for key in keys] for keys in alone]
    recipes = Recipes(a.only(key for key, _ in pairs), b.only(key for _, key in pairs))
    found = [
        _compare_outputs(recipes, recipes.a.roots[key], recipes.b.roots[other], limit, num_shown)
        for key, other in pairs
    ]
    lacks = [
        f"{name}: the store has not what it was made from, so no cause is known"
        for name, of in (("A", recipes.a), ("B", recipes.b))
        if not of.shards
    ]
    return {
        "a": a.name,
        "b": b.name,
        "is_same": not any(alone) and all(of["result"] == SAME for of in found),
        "only_a": names[0],
        "only_b": names[1],
        "outputs": found,
        "stages": recipes.stages(),
        "fields": recipes.changes(),
        "raw_files": recipes.raw_files(),
        "notes": lacks,
    }


SAME = "same bytes"


def _pairs(a: Side, b: Side) -> list[tuple[Key, Key]]:
    """Return what is compared with what: the only output of each, or those of the same name."""
    if len(a.roots) == len(b.roots) == 1:
        return [(next(iter(a.roots)), next(iter(b.roots)))]
    both = sorted(a.roots.keys() & b.roots.keys())
    if not both:
        has = "; ".join(", ".join("/".join(key) for key in sorted(of.roots)) for of in (a, b))
        raise ConfigError(
            where=f"{a.name} and {b.name}",
            expected="outputs of the same dataset and name, or one output each",
            found=has,
            remedy="name two exports by their folders",
        )
    return [(key, key) for key in both]


def _compare_outputs(
    recipes: Recipes, a: StoredOutput, b: StoredOutput, limit: int | None, num_shown: int
) -> dict[str, Any]:
    """Return what differs between two outputs; of exports the documents, too."""
    fields: dict[str, Any] = {"a": a.shown, "b": b.shown, "name": "/".join(filter(None, key_of(a)))}
    if a.manifest.files == b.manifest.files:
        return {**fields, "result": SAME}
    counts = [dict(of.manifest.counts) for of in (a, b)]
    names = [of for of in {**counts[0], **counts[1]} if counts[0].get(of) != counts[1].get(of)]
    fields["counts"] = {of: [each.get(of) for each in counts] for of in names}
    if not (is_export(a.manifest) and is_export(b.manifest)):
        return {**fields, "result": "other bytes"}
    changes = DocumentChanges(a, b, recipes)
    result = "same tokens in the same order, in other files"
    if changes.differs.any():
        result = "other tokens"
    elif not changes.is_in_order:
        result = "same tokens in another order"
    return {
        **fields,
        "result": result,
        "num_tokens": changes.num_tokens,
        "kinds": changes.counts(),
        "causes": dict(changes.causes().most_common()),
        "documents": changes.listed(limit, num_shown),
    }


BEFORE, SHOWN = 4, 12
"""Tokens before the first that differs, and all that are shown."""


class DocumentChanges:
    """The documents of two exports that differ.

    Raises: CorruptOutputError where an index is damaged; ConfigError where tokens have to be read,
    and are of a format that is never read.
    """

    def __init__(self, a: StoredOutput, b: StoredOutput, recipes: Recipes) -> None:
        parts, files = new_numbers(), new_numbers()
        sides = (a, recipes.a), (b, recipes.b)
        self._both = [
            IndexedExport(Export(of), side, read_index(of, parts, files)) for of, side in sides
        ]
        self._parts, self._files = list(parts), list(files)
        self._num_rows = 1 + max(int(of.columns["row"].max(initial=0)) for of in self._both)
        ids = [of.ids(self._num_rows, len(parts) + 1) for of in self._both]
        self._ids = np.union1d(*ids)
        """Each document in each part in which one of the two has it."""
        self._places = [np.searchsorted(self._ids, of) for of in ids]
        documents = self._ids // (len(parts) + 1)
        self._first = np.flatnonzero(np.diff(documents, prepend=-1))
        """The place in `_ids` of the first part of each document."""
        self._file, self._row = np.divmod(documents[self._first], self._num_rows)
        self._tokens = [self._of_parts(of, "num_tokens") for of in (0, 1)]
        self._cause_of = cache(lambda file, kind: recipes.cause_of(self._files[file], a, kind))

    def _origin_of(self, file: int) -> tuple[str, str]:
        """Return the dataset and the raw file of a name in the indexes."""
        export = self._both[0].export
        return origin_of(self._files[file], own_dataset(export.manifest))

    @cached_property
    def kinds(self) -> dict[str, Flags]:
        """Whether each document is only in B; only in A; in other parts; in both with other
        tokens."""
        sums = [self._of_documents(np.add, of) for of in self._tokens]
        are_in = [of > 0 for of in sums]
        in_both = are_in[0] & are_in[1]
        has = [of > 0 for of in self._tokens]
        starts = [self._of_parts(of, "char_start") for of in (0, 1)]
        is_moved = in_both & self._of_documents(np.logical_or, has[0] != has[1])
        is_other = (self._tokens[0] != self._tokens[1]) | (starts[0] != starts[1])
        is_changed = in_both & np.where(
            is_moved, sums[0] != sums[1], self._of_documents(np.logical_or, is_other)
        )
        is_changed |= self._has_other_content(in_both & ~is_changed)
        added, removed = are_in[1] & ~are_in[0], are_in[0] & ~are_in[1]
        return {"added": added, "removed": removed, "moved": is_moved, "changed": is_changed}

    def _of_parts(self, side: int, column: str) -> Integers:
        """Return the sum of a column over the segments of each document in each part; of the
        characters at which pieces begin, over their first segments."""
        own = self._both[side].columns
        values = own[column] * ((own["token_in_piece"] == 0) | (column == "num_tokens"))
        found = np.zeros(len(self._ids), np.int64)
        np.add.at(found, self._places[side], values)
        return found

    def _of_documents(self, add: np.ufunc, of_parts: npt.NDArray[Any]) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = of_parts[:0]
        return add.reduceat(of_parts, self._first) if len(self._first) else found

    def _has_other_content(self, asked: Flags) -> Flags:
        """Return whether documents, which have as many tokens on both sides, have others."""
        found, unknown = np.zeros(len(asked), bool), np.zeros(len(asked), bool)
        outputs = (of for one in self._both for of in one.side.outputs.values())
        has_cuts = any(CUT_TOKENS_NAME in of.manifest.files for of in outputs)
        some = np.flatnonzero(asked)
        files, edges = np.unique(self._file[some], return_index=True)
        for file, own in zip(files.tolist(), np.split(some, edges[1:]), strict=False):
            key = self._origin_of(file)
            shards = [of.side.shards[key] for of in self._both if key in of.side.shards]
            recipes = [of.manifest.recipe for of in shards]
            made = [(of.version, of.config, of.parents["tokenizer"]) for of in recipes]
            if len(shards) < 2 or made[0] != made[1] or has_cuts:
                unknown[own] = True
            elif recipes[0] != recipes[1]:
                hashes = []
                for shard in shards:
                    table = shard.documents(["row", "text_hash"])
                    rows = shard.origins.row_of(key[1], 0) + self._row[own]
                    at, _ = places_of(rows, to_numpy(table["row"]))
                    hashes.append(hashes_as_array(table["text_hash"])[at])
                found[own] = hashes[0] != hashes[1]
        if unknown.any():
            sums = [np.zeros(len(asked), np.uint64) for _ in self._both]
            documents = np.repeat(np.arange(len(asked)), np.diff([*self._first, len(self._ids)]))
            for one, places, of_side in zip(self._both, self._places, sums, strict=True):
                document = documents[places]
                np.add.at(of_side, document, one.sums(unknown[document], self._parts))
            found |= unknown & (sums[0] != sums[1])
        return found

    @property
    def is_in_order(self) -> bool:
        """Whether both have the same documents one after another in each part."""
        a, b = (places[np.diff(places, prepend=-1) != 0] for places in self._places)
        return np.array_equal(a, b)

    @property
    def num_tokens(self) -> list[int]:
        """The tokens of each side, those that sequences repeat counted once."""
        return [int(of.sum()) for of in self._tokens]

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many documents are of each kind, and their tokens in A and in B."""
        sums = [self._of_documents(np.add, of) for of in self._tokens]
        return {
            kind: {
                "num_documents": int(np.count_nonzero(are)),
                "num_tokens_a": int(sums[0][are].sum()),
                "num_tokens_b": int(sums[1][are].sum()),
            }
            for kind, are in self.kinds.items()
        }

    def causes(self) -> Counter[str]:
        """Return the number of documents that differ, by where on their way something does."""
        found, left = Counter[str](), self.differs.copy()
        for kind, are in reversed(self.kinds.items()):
            counts = np.bincount(self._file[are & left], minlength=len(self._files)).tolist()
            left &= ~are
            for file, num in enumerate(counts):
                if num:
                    found[self._cause_of(file, kind)] += num
        return found

    @cached_property
    def differs(self) -> Flags:
        """Whether each document is of any kind."""
        found: Flags = np.logical_or.reduce([*self.kinds.values()])
        return found

    def listed(self, limit: int | None, num_shown: int) -> list[dict[str, Any]]:
        """Return the first documents that differ, by raw file and row, or all: their kinds, the
        tokens of each part in A and in B, and the cause; of the first `num_shown` the rule that
        leaves them out and the first token that is another."""
        differs = np.flatnonzero(self.differs)
        names = self._files
        place = np.argsort(np.argsort(np.array(names, dtype=object)))[self._file[differs]]
        order = differs[np.lexsort((self._row[differs], place))][:limit].tolist()
        stop, found = np.append(self._first, len(self._ids))[1:], []
        part = self._ids % (len(self._parts) + 1)
        for number, of in enumerate(order):
            file, row = int(self._file[of]), int(self._row[of])
            at = range(self._first[of], stop[of])
            tokens = [
                {self._parts[part[place]]: int(own[place]) for place in at if own[place]}
                for own in self._tokens
            ]
            kinds = [kind for kind, are in self.kinds.items() if are[of]]
            entry: dict[str, Any] = {
                "raw_file": names[file],
                "row": row,
                "kinds": kinds,
                "num_tokens_a": tokens[0],
                "num_tokens_b": tokens[1],
                "cause": self._cause_of(file, kinds[-1]),
            }
            if number < num_shown:
                entry |= self._explained(file, row, kinds)
            found.append(entry)
        return found

    def _explained(self, file: int, row: int, kinds: Sequence[str]) -> dict[str, Any]:
        """Return the rule that leaves a document out on the side that has it not, or the first
        token that is another."""
        if "changed" in kinds:
            return {"first_other_token": self._first_other_token(file, row)}
        dataset, key = self._origin_of(file)
        side = self._both[0 if "added" in kinds else 1].side
        shard = side.shards.get((dataset, key))
        partition = str(shard.manifest.partition) if shard else ""
        selection = side.outputs.get((dataset, SELECTION.name, partition))
        if shard is None or selection is None or "moved" in kinds:
            return {}
        rows = to_numpy(shard.documents(["row"])["row"])
        place, is_there = places_of(np.array([shard.origins.row_of(key, 0) + row]), rows)
        rule = rule_against(selection, int(place[0])) if is_there[0] else None
        return {"left_out_by": rule} if rule else {}

    def _first_other_token(self, file: int, row: int) -> dict[str, Any] | None:
        """Return where the tokens of a document begin to be others, and these on both sides."""
        if not all(of.export.is_read for of in self._both):
            return None
        tokens = [of.tokens_of(file, row, self._parts) for of in self._both]
        num = min(map(len, tokens))
        differs = np.flatnonzero(tokens[0][:num] != tokens[1][:num])
        at = int(differs[0]) if len(differs) else num
        some = [of[max(0, at - BEFORE) : at - BEFORE + SHOWN].tolist() for of in tokens]
        a, b = (self._decoded(of, own) for of, own in zip(self._both, some, strict=True))
        return {"token": at, "a": a, "b": b}

    def _decoded(self, of: IndexedExport, token_ids: list[int]) -> str:
        """Return the text of some tokens, or the ids where their tokenizer is not here."""
        tokenizer = open_tokenizer(of.export.stored, of.side.ancestry)
        with suppress(UntrustedCodeError):
            return TokenTexts(tokenizer).decoded(token_ids) if tokenizer else str(token_ids)
        return str(token_ids)

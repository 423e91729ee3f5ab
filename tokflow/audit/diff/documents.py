"""The documents of two exports, compared without a loop over them.

A document is known by raw file and row. It has some tokens in each part, and pieces of its text
begin at some characters. Where these are the same, its tokens are, too, if both sides took it of
one token shard, or made it of one text by one tokenizer in one way; else they are read.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tokflow.audit.ancestry import open_tokenizer
from tokflow.audit.diff.sides import Recipes, Side
from tokflow.audit.token_texts import TokenTexts
from tokflow.errors import UntrustedCodeError
from tokflow.exports import Export
from tokflow.exports.format import TOKENS_AT_ONCE, pieces
from tokflow.exports.index import scan_index
from tokflow.selection.left_out import rule_against
from tokflow.selection.stage import SELECTION
from tokflow.split.mixed_split import origin_of, own_dataset
from tokflow.split.permutation import mixed
from tokflow.split.spans import CUT_TOKENS_NAME
from tokflow.store.store import StoredOutput
from tokflow.store.tables import one_array, to_numpy
from tokflow.tokens.shard import TokenShard, places_of
from tokflow.tokens.shard_files import hashes_as_array

Integers: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = defaultdict[str, int]

COLUMNS = ("part", "raw_file", "row", "num_tokens", "position", "char_start", "token_in_piece")
"""Columns of an index that are read; parts and raw files as numbers that both sides share."""

REPEATED = ".num_repeated_tokens"
"""Count of a part: tokens that are in another sequence, too."""

BEFORE, SHOWN = 4, 12
"""Tokens before the first that differs, and all that are shown."""


@dataclass(frozen=True)
class _One:
    """One of the two exports."""

    export: Export
    side: Side
    columns: dict[str, Integers]

    def ids(self, num_rows: int, num_parts: int) -> Integers:
        """Return a number for the document and the part of each segment."""
        documents = self.columns["raw_file"] * num_rows + self.columns["row"]
        return documents * num_parts + self.columns["part"]

    def sums(self, wanted: Flags, parts: Sequence[str]) -> Words:
        """Return a number for the tokens of each of some segments, and their places in the text;
        those of two documents add up to the same one where they have the same tokens, and else
        with a chance of 2**-64. Only the files that have some of them are read."""
        found, own = np.zeros(len(wanted), np.uint64), self.columns
        of_tokens = mixed(np.arange(self.export.vocab_size, dtype=np.uint64), salt=1)
        for part in self.export.parts:
            at = np.flatnonzero(wanted & (own["part"] == parts.index(part)))
            begin = own["position"][at]
            end = begin + own["num_tokens"][at]
            place = own["char_start"][at] * 1_000_003 + own["token_in_piece"][at] - begin
            for start, tokens in self._tokens(part, begin, end) if len(at) else ():
                stop = start + len(tokens)
                some = slice(np.searchsorted(end, start, "right"), np.searchsorted(begin, stop))
                first = np.maximum(begin[some], start)
                sizes = np.minimum(end[some], stop) - first
                if not len(sizes):
                    continue
                edges = np.cumsum(sizes) - sizes
                position = np.repeat(first - edges, sizes) + np.arange(sizes.sum())
                places = np.repeat(place[some], sizes) + position
                values = of_tokens[tokens[position - start]] * mixed(places.astype(np.uint64), 2)
                found[at[some]] += np.add.reduceat(values, edges)
        return found

    def _tokens(
        self, part: str, begin: Integers, end: Integers
    ) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield positions of a part, and the tokens from there on, some at a time; of files without
        a token of some spans, which are in order, nothing."""
        length, stop = self.export.of_part(part).sequence_length or 1, 0
        for portion in self.export.portions(part):
            start, stop = stop, stop + portion.num * length
            if np.searchsorted(end, start, "right") == np.searchsorted(begin, stop):
                continue
            for piece in pieces(portion.read(), self.export.layout, self.export.dtype):
                tokens = piece["token_ids"].ravel()
                for at in range(0, len(tokens), TOKENS_AT_ONCE):
                    yield start + at, tokens[at : at + TOKENS_AT_ONCE]
                start += len(tokens)

    def tokens_of(self, file: int, row: int, parts: Sequence[str]) -> npt.NDArray[Any]:
        """Return the tokens of one document as the export has them, in the order of its text."""
        own = self.columns
        at = np.flatnonzero((own["raw_file"] == file) & (own["row"] == row))
        at = at[np.lexsort((own["token_in_piece"][at], own["char_start"][at]))]
        spans = (own[name][at].tolist() for name in ("part", "position", "num_tokens"))
        found = [
            of["token_ids"]
            for part, start, num in zip(*spans, strict=True)
            for of in self.export.between(parts[part], start, start + num)
        ]
        return np.concatenate([np.zeros(0, np.int64), *found])


class DocumentChanges:
    """The documents of two exports that differ.

    Raises: CorruptOutputError where an index is damaged; ConfigError where tokens have to be read,
    and are of a format that is never read.
    """

    def __init__(self, a: StoredOutput, b: StoredOutput, recipes: Recipes) -> None:
        parts, files = _numbers(), _numbers()
        sides = (a, recipes.a), (b, recipes.b)
        self._both = [_One(Export(of), side, _read_index(of, parts, files)) for of, side in sides]
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
            made = [_tokenized(of) for of in shards]
            if len(shards) < 2 or made[0] != made[1] or has_cuts:
                unknown[own] = True
            elif shards[0].manifest.recipe != shards[1].manifest.recipe:
                a, b = (_hashes(of, of.origins.row_of(key[1], 0) + self._row[own]) for of in shards)
                found[own] = a != b
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

    def _decoded(self, of: _One, token_ids: list[int]) -> str:
        """Return the text of some tokens, or the ids where their tokenizer is not here."""
        tokenizer = open_tokenizer(of.export.stored, of.side.ancestry)
        with suppress(UntrustedCodeError):
            return TokenTexts(tokenizer).decoded(token_ids) if tokenizer else str(token_ids)
        return str(token_ids)


def _numbers() -> Numbers:
    """Return numbers of names, in the order in which they are asked for."""
    found: Numbers = defaultdict(int)
    found.default_factory = found.__len__
    return found


def _read_index(export: StoredOutput, parts: Numbers, files: Numbers) -> dict[str, Integers]:
    """Return the columns of an index, without the tokens that a sequence repeats. Raises:
    CorruptOutputError."""
    found: dict[str, list[Integers]] = {name: [np.zeros(0, np.int64)] for name in COLUMNS}
    for table in scan_index(export, COLUMNS):
        for name, numbers in (("part", parts), ("raw_file", files)):
            codes = one_array(table[name])
            own = np.array([numbers[of] for of in codes.dictionary.to_pylist()], np.int64)
            found[name].append(own[to_numpy(codes.indices)])
        for name in COLUMNS[2:]:
            found[name].append(to_numpy(table[name]))
    columns = {name: np.concatenate(of) for name, of in found.items()}
    repeated = [of for name, of in export.manifest.counts.items() if name.endswith(REPEATED)]
    return _without_repeats(columns) if any(repeated) else columns


def _without_repeats(own: dict[str, Integers]) -> dict[str, Integers]:
    """Return the columns of an index without the tokens that an earlier segment of the same text
    has, as `packing.overlap` makes them."""
    of_text = ("char_start", "row", "raw_file", "part")
    order = np.lexsort([own[name] for name in ("token_in_piece", *of_text)])
    start, num_tokens = (own[name][order] for name in ("token_in_piece", "num_tokens"))
    is_next = np.logical_and.reduce([np.diff(own[of][order], prepend=-1) == 0 for of in of_text])
    again = np.zeros(len(order), np.int64)
    repeated = np.roll(start + num_tokens, 1) - start
    again[order] = np.where(is_next, np.clip(repeated, 0, num_tokens), 0)
    own = {**own, "num_tokens": own["num_tokens"] - again}
    own |= {name: own[name] + again for name in ("position", "token_in_piece")}
    return {name: of[own["num_tokens"] > 0] for name, of in own.items()}


def _tokenized(shard: TokenShard) -> tuple[Any, ...]:
    """Return what decides the tokens of a text in a shard."""
    recipe = shard.manifest.recipe
    return recipe.version, recipe.config, recipe.parents["tokenizer"]


def _hashes(shard: TokenShard, rows: Integers) -> npt.NDArray[np.void]:
    """Return the hashes of the texts in some rows of a shard."""
    table = shard.documents(["row", "text_hash"])
    at, _ = places_of(rows, to_numpy(table["row"]))
    return hashes_as_array(table["text_hash"])[at]

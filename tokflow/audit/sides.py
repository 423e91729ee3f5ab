"""The two sides of a comparison: their outputs, with all that these were made from, their recipes,
and exports with their indexes."""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tokflow.audit.ancestry import Ancestry, lineage
from tokflow.errors import CorruptOutputError, ForeignOutputError, MissingOutputError
from tokflow.exports import Export
from tokflow.exports.format import TOKENS_AT_ONCE, pieces
from tokflow.exports.index import scan_index
from tokflow.exports.reading import is_export
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.stages import STAGES
from tokflow.selection.stage import SELECTION
from tokflow.split.mixed_split import source_and_key
from tokflow.split.mixture import dataset_of
from tokflow.split.permutation import mixed
from tokflow.split.stage import SPLIT
from tokflow.store.listed_files import LATEST, named_by, resolved
from tokflow.store.manifest import MANIFEST_NAME
from tokflow.store.store import StoredOutput
from tokflow.store.stored_outputs import (
    Unreadable,
    newest_first,
    opened,
    output_at,
    output_in,
    walk,
)
from tokflow.store.tables import one_array, to_numpy
from tokflow.tokenizers.stage import TOKENIZER
from tokflow.tokens.shard import TokenShard, is_shard
from tokflow.tokens.stage import TOKENS

Integers: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = defaultdict[str, int]

COLUMNS = ("part", "raw_file", "row", "num_tokens", "position", "char_start", "token_in_piece")
"""Columns of an index that are read; parts and raw files as numbers that both sides share."""

REPEATED = ".num_repeated_tokens"
"""Count of a part: tokens that are in another sequence, too."""

Key: TypeAlias = tuple[str, str, str]
"""Dataset, stage, and partition or name of an export; what both sides call an output."""

VERSION = "version of its code"

MIXED_TOKENS = "mixture.tokens."
"""Fields of a mixture's split that follow from the tokens of all its sources."""

DERIVED = MIXED_TOKENS, "all_files"
"""Beginnings of the names of fields that follow from others, so that these come first as causes."""

FIRST_STAGES = {"changed": TOKENIZER.name, "moved": SPLIT.name}
"""Stages that come first as causes of a kind of difference; of others those behind the tokens."""


def key_of(output: StoredOutput) -> Key:
    """Return what an output is called, in whichever version."""
    manifest = output.manifest
    name = output.export_name if is_export(manifest) else manifest.partition
    return manifest.dataset, manifest.recipe.stage, name or ""


def name_of(key: Key) -> str:
    """Return the dataset and the partition, or export, of an output."""
    return "/".join(filter(None, (key[0], key[2])))


@dataclass(frozen=True)  # without slots, since it keeps what it looked up
class Side:
    """One side: outputs of which no other of them is made, by their keys."""

    name: str
    roots: Mapping[Key, StoredOutput]
    is_one: bool = False
    """Whether one output was named, and not all that a dataset or a store has."""
    ancestry: Ancestry = field(default_factory=Ancestry)

    def only(self, keys: Iterable[Key]) -> "Side":
        """Return a side with these outputs alone."""
        return replace(self, roots={key: self.roots[key] for key in keys})

    @cached_property
    def outputs(self) -> dict[Key, StoredOutput]:
        """The outputs and all that they were made from, as far as the store has it."""
        found = dict(self.roots)
        for root in self.roots.values():
            with suppress(MissingOutputError, CorruptOutputError, ForeignOutputError):
                found |= {key_of(of): of for of in lineage(root, self.ancestry)}
        return found

    @cached_property
    def fields(self) -> dict[Key, dict[str, Any]]:
        """The version, the config and the inputs that are no outputs here, as the digest of a raw
        file, of each output."""
        outputs = self.outputs.values()
        known = {of.manifest.recipe.fingerprint for of in outputs}
        known |= {str(of.manifest.details.get("tokenizer_fingerprint")) for of in outputs}
        return {
            key: {
                **dict(_flat(of.manifest.recipe.config)),
                VERSION: of.manifest.recipe.version,
                **{name: at for name, at in of.manifest.recipe.parents.items() if at not in known},
            }
            for key, of in self.outputs.items()
        }

    @cached_property
    def shards(self) -> dict[tuple[str, str], TokenShard]:
        """The token shard of each raw file, by dataset and key."""
        shards = [TokenShard(of) for of in self.outputs.values() if is_shard(of.manifest)]
        return {(of.manifest.dataset, key): of for of in shards for key in of.origins.raw_files}


def _flat(config: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of a config that are set, as `parts.train.fraction`; of parts, which are
    pairs in the order of the split, too."""
    if isinstance(config, list) and all(isinstance(of, list) and len(of) == 2 for of in config):
        config = dict(config) if all(isinstance(of[0], str) for of in config) else config
    if isinstance(config, Mapping) and config:
        for of, value in config.items():
            yield from _flat(value, f"{name}.{of}" if name else of)
    elif config not in (None, ""):
        yield name, config


def side_of(target: str) -> Side:
    """Return the outputs at a path or URL: that one, or those of the datasets below it, of each
    export what `latest` leads to; of a dataset without exports the newest of all that it has.

    Raises: MissingOutputError where there is none; the error of one that cannot be read.
    """
    store, path = opened(target)
    if (at := output_at(store, path)) is not None:
        return Side(target, {key_of(at): at}, is_one=True)
    found: list[StoredOutput] = []
    for each in walk(store, resolved(path)):
        if isinstance(each, Unreadable):
            raise each.error
        found.append(each)
    if not found:
        output_in(store, path)  # says what is there
    folders = {of.folder for of in found}
    newest = {_newest(folder, folders) for folder in {of.parent for of in folders}}
    found = [of for of in found if of.folder in newest]
    with_exports = {of.manifest.dataset for of in found if is_export(of.manifest)}
    roots = (
        of for of in found if is_export(of.manifest) or of.manifest.dataset not in with_exports
    )
    return Side(target, {key_of(of): of for of in roots})


def _newest(folder: Path, found: Container[Path]) -> Path:
    """Return the output in a folder that `latest` leads to or, where it leads to none of those that
    were found, the one that was made last."""
    latest = named_by(folder / LATEST)
    if latest is not None and latest in found:
        return latest
    return newest_first(folder, MANIFEST_NAME)[0]


def side_of_dataset(dataset: Dataset, name: str) -> Side:
    """Return the exports of a dataset as its YAML is now, or all outputs of one without. Raises:
    MissingOutputError where one is not built."""
    outputs = [of.stored for of in graph_of(dataset).outputs()]
    exports = [of for of in outputs if is_export(of.manifest)]
    return Side(name, {key_of(of): of for of in exports or outputs})


@dataclass(frozen=True)  # without slots, since it keeps what it looked up
class Recipes:
    """The recipes of two sides, compared."""

    a: Side
    b: Side

    @cached_property
    def changed(self) -> dict[Key, list[str]]:
        """The fields that have another value, by output; of those that both have and that differ
        by themselves, and of a selection and the like that one side alone has of a raw file."""
        found, of_a, of_b = {}, self.a.fields, self.b.fields
        both = of_a.keys() & of_b.keys()
        for key in sorted(of_a.keys() | of_b.keys(), key=_order):
            if key in both or (key[0], TOKENS.name, key[2]) in both:
                a, b = of_a.get(key, {}), of_b.get(key, {})
                names = [of for of in {**a, **b} if a.get(of) != b.get(of)]
                if names := [of for of in names if of != VERSION or key in both]:
                    found[key] = names
        return found

    def changes(self) -> list[dict[str, Any]]:
        """Return the fields that differ, in the order of the stages: stage, field, its values a and
        b (None where it is not set), num_outputs that have the same ones, or other digests, and the
        first of them."""
        found: dict[tuple[str, str, str], dict[str, Any]] = {}
        for key, names in self.changed.items():
            first = name_of(key)
            for name in names:
                a, b = (of.fields.get(key, {}).get(name) for of in (self.a, self.b))
                is_digest = any(isinstance(of, str) and len(of) == 64 for of in (a, b))
                values = key[1], name, "" if is_digest else repr((a, b))
                row = {"stage": key[1], "field": name, "a": a, "b": b, "num_outputs": 0}
                found.setdefault(values, {**row, "first": first})["num_outputs"] += 1
        return list(found.values())

    def stages(self) -> list[dict[str, Any]]:
        """Return of each stage the number of outputs that are the same, and the names of those that
        differ, by themselves or by their inputs, or that one side alone has, if there are any."""
        found: dict[str, dict[str, Any]] = {}
        a, b = self.a.outputs, self.b.outputs
        for key in sorted(a.keys() | b.keys(), key=_order):
            row = found.setdefault(key[1], {"stage": key[1], "num_same": 0})
            kind = "only_b" if key not in a else "only_a" if key not in b else "different"
            recipes = [of[key].manifest.recipe for of in (a, b) if key in of]
            if kind == "different" and recipes[0].fingerprint == recipes[1].fingerprint:
                row["num_same"] += 1
            else:
                row.setdefault(kind, []).append(name_of(key))
        return list(found.values())

    def raw_files(self) -> dict[str, list[str]]:
        """Return the raw files that only one side has, and those, or their groups, of which the
        content differs."""
        a, b = self.a.shards, self.b.shards
        raw = [
            {key: of.manifest.recipe.parents["raw"] for key, of in each.items()} for each in (a, b)
        ]
        other = [of for of in a.keys() & b.keys() if raw[0][of] != raw[1][of]]
        kinds = {"changed": other, "only_a": a.keys() - b.keys(), "only_b": b.keys() - a.keys()}
        return {kind: ["/".join(of) for of in sorted(keys)] for kind, keys in kinds.items()}

    def cause_of(self, raw_file: str, export: StoredOutput, kind: str) -> str:
        """Return the first stage, and its first field, that differs on the way of a raw file, by
        its name in the index of an export. The stages before the one that can make a difference of
        this kind by itself come last; the number of tokens that a mixture takes is no cause where
        tokens differ, since it comes from them."""
        dataset, mixture, source, key = export.manifest.dataset, "", "", raw_file
        if "mixture" in export.manifest.details:
            mixture, (source, key) = dataset, source_and_key(raw_file)
            dataset = dataset_of(source)
        a, b = (of.shards.get((dataset, key)) for of in (self.a, self.b))
        if not (self.a.shards and self.b.shards):
            return "unknown: its store is not here"
        if a is None or b is None:
            return f"raw file only in {'B' if a is None else 'A'}"
        partition = str(a.manifest.partition)
        ways = (dataset, partition), (mixture, f"{source}/{partition}"), ("", "")
        found = sorted(of for way in ways for of in self._of_ways.get(way, ()))
        if a.manifest.recipe != b.manifest.recipe:
            found = [of for of in found if MIXED_TOKENS not in of[1]]
        found.sort(key=lambda of: of[0] < _PLACES[FIRST_STAGES.get(kind, SELECTION.name)])
        own = self.changed.get(key_of(export))
        behind = f"export: {own[0]}" if own else "other documents of its part"
        return found[0][1] if found else behind

    @cached_property
    def _of_ways(self) -> dict[tuple[str, str], list[tuple[int, str]]]:
        """The changes by dataset and partition, with their places in the order of the stages; under
        empty names those of what the whole dataset has."""
        found: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for key, names in self.changed.items():
            way = (key[0], key[2]) if key[2] else ("", "")
            first = min(names, key=lambda of: of.startswith(DERIVED))
            found.setdefault(way, []).append((_order(key)[0], f"{key[1]}: {first}"))
        return found


_PLACES = {of.name: place for place, of in enumerate(STAGES)}


def _order(key: Key) -> tuple[int, Key]:
    return _PLACES.get(key[1], -1), key


@dataclass(frozen=True)
class IndexedExport:
    """An export, with the side that it is of and the columns of its index."""

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
            for start, tokens in self._read(part, begin, end) if len(at) else ():
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

    def _read(
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


def new_numbers() -> Numbers:
    """Return numbers of names, in the order in which they are asked for."""
    found: Numbers = defaultdict(int)
    found.default_factory = found.__len__
    return found


def read_index(export: StoredOutput, parts: Numbers, files: Numbers) -> dict[str, Integers]:
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

"""Section `exclude` of a dataset's YAML, and the stage that finds the documents of all files that
its lists name."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BeforeValidator

from tokflow.attributes.config import OWN_KEYS
from tokflow.attributes.stage import named_digest, paths_of, tables_of
from tokflow.documents import DocumentsConfig
from tokflow.errors import ConfigError, nearest
from tokflow.raw import RawFile
from tokflow.raw.config import as_names
from tokflow.stage import (
    Cost,
    DatasetConfig,
    Input,
    Making,
    Opened,
    Stage,
    Tables,
    TablesWriter,
    Writer,
)
from tokflow.store.config import Config
from tokflow.store.manifest import Recipe, joined_digest
from tokflow.store.store import StoredOutput
from tokflow.store.tables import one_array, read_table, to_arrow, to_numpy
from tokflow.tokens.shard import TokenShard

EXCLUSION_VERSION = 1
"""Raised when the same input would give other bytes."""

EXCLUDED_NAME = "excluded.parquet"

NAMED = 20
"""Rows without a document that a manifest names of each list."""


class ExcludeConfig(Config):
    """Documents to take out, as lists name them; they are in no part of the split and in no
    export."""

    section: ClassVar[str] = "exclude"

    path: Annotated[
        tuple[str, ...], BeforeValidator(as_names, json_schema_input_type=str | list[str])
    ] = ()
    """The lists, parquet, jsonl or csv on this disk: paths or patterns. A column `reason`, where a
    list has one, is what its rows are counted by; else that is the path of the list."""
    by: str | None = None
    """What a row names documents by: `row`, columns `file` (the path below the raw folder) and
    `row` (from 0); `text_hash`, the xxh3-128 of the text as 32 hex digits; or a column of
    documents.keep_columns. Default: the one of these that a list has."""
    copies: bool = False
    """True: documents with the same text as one that a list names go, too."""

    def check_over(self, documents: DocumentsConfig) -> None:
        """Refuse a key that documents do not have. Raises: ConfigError."""
        known = [*OWN_KEYS, *documents.keep_columns]
        if self.by is not None and self.by not in known:
            raise ConfigError(
                where="exclude.by",
                expected=f"one of {', '.join(known)}",
                found=repr(self.by),
                remedy=nearest(self.by, known) or "add it to documents.keep_columns",
            )


def as_exclude(exclude: object) -> object:
    """Return the fields that paths of lists, or null, stand for."""
    return exclude if isinstance(exclude, Mapping | ExcludeConfig) else {"path": exclude or ()}


@dataclass(frozen=True)  # without slots, since it keeps the rows of each file
class Exclusion:
    """The documents that are excluded from a dataset; see EXCLUDED_SCHEMA."""

    table: pa.Table

    @cached_property
    def _of_files(self) -> dict[str, npt.NDArray[np.int64]]:
        codes = one_array(self.table["raw_file"]).dictionary_encode()
        numbers = to_numpy(codes.indices)
        order = np.argsort(numbers, kind="stable")
        edges = np.searchsorted(numbers[order], np.arange(1, len(codes.dictionary)))
        return dict(zip(codes.dictionary.to_pylist(), np.split(order, edges), strict=False))

    def of(self, raw_files: Sequence[str]) -> pa.Table:
        """Return the rows of some raw files."""
        some = [self._of_files[key] for key in raw_files if key in self._of_files]
        return self.table.take(to_arrow(np.concatenate([np.zeros(0, dtype=np.int64), *some])))

    def named_by(self, raw_file: str, row: int) -> str:
        """Return the row of a list by which a document is excluded, as `requests.csv, row 7`."""
        [of] = (of for of in self.of([raw_file]).to_pylist() if of["row"] == row)
        copy = "the text of " if of["is_copy"] else ""
        return f"{copy}{of['list']}, row {of['list_row']}"

    def digest(self, raw_files: Sequence[str] | None = None) -> str:
        """Return the digest of what is excluded of some raw files, or of all, and for which
        reasons; empty where nothing is. Where a list has it does not count."""
        table = self.table if raw_files is None else self.of(raw_files)
        columns = (table[name].to_pylist() for name in ("raw_file", "row", "reason"))
        rows = sorted(zip(*columns, strict=True))
        return hashlib.sha256(repr(rows).encode()).hexdigest() if rows else ""


class ExclusionStage(Stage):
    """The documents that lists name, of the whole dataset."""

    name = "exclusion"
    config, needs = ExcludeConfig, "path"
    is_of_file = False
    cost = Cost(0.2)

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return the tokens of all partitions, whose documents have keys."""
        why = ", among whose documents those of `exclude` are looked for"
        return [Input(stage="tokens", reach="all", why_all=why)]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides the documents: the lists, and the tokens of all partitions."""
        digest = joined_digest(of.fingerprint for of in making.inputs("tokens").values())
        lists = named_digest(_files(making.graph.dataset))
        return _recipe(making.of(ExcludeConfig), lists=lists, all_files=digest)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides."""
        return _recipe(dataset.of(ExcludeConfig))

    def writer(self, making: Making) -> Writer:
        """Return what looks for the documents."""
        dataset, kept = making.graph.dataset, making.of(DocumentsConfig).keep_columns
        how = making.of(ExcludeConfig), kept, dataset.name
        shards = making.opened_all("tokens")
        return TablesWriter.of(making, excluded_from, shards, _files(dataset), *how)

    def files_beside(self, dataset: DatasetConfig, variant: str) -> Sequence[Path]:
        """Return the lists."""
        return [*paths_of(dataset.of(ExcludeConfig).path, dataset, "exclude.path").values()]

    def open(self, stored: StoredOutput, inputs: Opened) -> Exclusion:
        """Return the documents."""
        return Exclusion(read_table(stored.file(EXCLUDED_NAME)))

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        return f"The documents that {', '.join(dataset.of(ExcludeConfig).path)} takes out."


EXCLUSION = ExclusionStage()


def excludes(dataset: DatasetConfig) -> bool:
    """Return whether lists exclude documents of a dataset."""
    return EXCLUSION in dataset.stages and bool(EXCLUSION.variants(dataset))


def exclusion_of(making: Making) -> Exclusion | None:
    """Return what is excluded from the dataset of an output; None without `exclude`.

    Raises: MissingOutputError where the lists have not been looked up.
    """
    graph = making.graph
    if not excludes(graph.dataset):
        return None
    found: Exclusion = graph.shared(EXCLUSION, partial(making.opened, EXCLUSION.name))
    return found


def _files(dataset: DatasetConfig) -> dict[str, RawFile]:
    return tables_of(dataset.of(ExcludeConfig).path, dataset, "exclude.path")


def _recipe(config: ExcludeConfig, **decides: str) -> Recipe:
    fields = {**config.model_dump(exclude={"path"}), **decides}
    return Recipe(stage="exclusion", version=EXCLUSION_VERSION, config=fields, parents={})


def excluded_from(
    shards: Sequence[TokenShard],
    files: Mapping[str, RawFile],
    config: ExcludeConfig,
    kept: Sequence[str],
    dataset: str,
) -> Tables:
    """Return the documents that lists name.

    Raises: as `read_lists`; ConfigError for a list of which no row names a document.
    """
    from tokflow.exclusion.lists import check_used, find_excluded, read_lists

    lists = read_lists(files, config.by, kept)
    found = find_excluded(shards, lists, copies=config.copies)
    check_used(lists, found.unused, "exclude.path", dataset)
    table, unused = found.documents, found.unused
    counts = {
        "num_documents": len(table),
        "num_copies": sum(table["is_copy"].to_pylist()),
        "num_list_rows": sum(len(of.keys) for of in lists),
        "num_unused_rows": sum(map(len, unused.values())),
    }
    details = {
        "reasons": dict(sorted(Counter(table["reason"].to_pylist()).items())),
        "unused": {name: rows[:NAMED].tolist() for name, rows in unused.items() if len(rows)},
    }
    return {EXCLUDED_NAME: table}, counts, details

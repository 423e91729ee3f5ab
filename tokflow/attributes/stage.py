"""The stage that aligns columns from outside with the documents of each token shard."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import pyarrow as pa

from tokflow.attributes.config import AttributeConfig, Attributes
from tokflow.errors import ConfigError, first_five
from tokflow.raw import RawConfig, RawFile, list_raw
from tokflow.raw.files import hash_files
from tokflow.stage import (
    Cost,
    DatasetConfig,
    Graph,
    Input,
    Making,
    Opened,
    Stage,
    WholeWriter,
    Writer,
)
from tokflow.store.config import relocated
from tokflow.store.manifest import Manifest, Recipe, checksums, write_manifest
from tokflow.store.store import StoredOutput
from tokflow.store.tables import TableWriter, read_table
from tokflow.tokens.shard import TokenShard

ATTRIBUTES_VERSION = 1
"""Raised when the same input would give other bytes."""

ATTRIBUTES_NAME = "attributes.parquet"
"""One row per document, in the order of documents.parquet; numbers are float64."""


class AttributesStage(Stage):
    """The attributes of each token shard, once for each name."""

    name = "attributes"
    cost = Cost(0.05)

    def variants(self, dataset: DatasetConfig) -> Mapping[str, AttributeConfig]:
        """Return the attributes by name."""
        return dataset.of(Attributes).named

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return the tokens, whose documents have keys."""
        return [Input(stage="tokens")]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides attributes: the documents, the tables, and what is taken of them."""
        tables = _tables_of(making)
        fingerprint = making.input("tokens").fingerprint
        return _recipe(_config(making), [of.sha256 for of in tables], tokens=fingerprint)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides of the attributes of any shard."""
        return _recipe(dataset.of(Attributes).named[variant], [])

    def writer(self, making: Making) -> Writer:
        """Return what reads the tables and aligns them."""
        made_of = making.opened("tokens"), _config(making), _tables_of(making), making.variant
        return WholeWriter(partial(write_attributes, *made_of, recipe=making.recipe))

    def open(self, stored: StoredOutput, inputs: Opened) -> pa.Table:
        """Return the columns, one row per document."""
        return read_table(stored.file(ATTRIBUTES_NAME))

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        config = dataset.of(Attributes).named[variant]
        return f"{', '.join(config.columns)} of each document, by {config.key}, of tables."


ATTRIBUTES = AttributesStage()


def _config(making: Making) -> AttributeConfig:
    return making.of(Attributes).named[making.variant]


def _recipe(config: AttributeConfig, tables: Sequence[str], **parents: str) -> Recipe:
    fields = {"key": config.key, "columns": config.columns, "tables": [*tables]}
    return Recipe(stage="attributes", version=ATTRIBUTES_VERSION, config=fields, parents=parents)


@dataclass(frozen=True, slots=True)
class _Tables:
    """The tables of an attribute."""

    files: Mapping[str, RawFile]
    of_raw: Mapping[str, str]
    """Raw file to its own table; empty where all go with all."""

    def of(self, raw_files: Sequence[str]) -> list[RawFile]:
        """Return the tables of some raw files."""
        chosen = [self.of_raw[key] for key in raw_files] if self.of_raw else self.files
        return [self.files[key] for key in dict.fromkeys(chosen)]


def _tables_of(making: Making) -> list[RawFile]:
    """Return the tables that a partition's documents are looked up in. Raises: TokflowError."""

    def of_all() -> dict[str, _Tables]:
        named = making.of(Attributes).named
        return {name: _found(making.graph, name, of) for name, of in named.items()}

    tables = making.graph.shared(ATTRIBUTES, of_all)[making.variant]
    return tables.of([of.key for of in making.graph.partitions[making.key]])


def _found(graph: Graph, name: str, config: AttributeConfig) -> _Tables:
    """Return the tables of an attribute, hashed. Raises: ConfigError, RawFileError."""
    where = f"attributes.{name}.files"
    try:
        sources = list_raw(RawConfig(files=config.files), base=graph.dataset.base).sources
    except ConfigError as error:
        raise relocated(error, where) from None
    if far := [key for key, of in sources.items() if not of.is_local]:
        raise ConfigError(
            where=where, expected="files of this disk", found=far[0], remedy="copy them here"
        )
    paths = {key: Path(of.url) for key, of in sources.items()}
    files = hash_files(paths, store=graph.dataset.folder)
    by_stem = {_stem(key): key for key in paths}
    of_raw = {key: by_stem[_stem(key)] for key in graph.sources if _stem(key) in by_stem}
    is_each = len(of_raw) == len(graph.sources) and len(by_stem) == len(paths)
    if config.key == "row" and not is_each:
        without = sorted(graph.sources.keys() - of_raw.keys()) or [*paths]
        raise ConfigError(
            where=where,
            expected="a table for each raw file, of its name, for `key: row` counts in each",
            found=f"{len(paths):,} tables, and none of its own for {first_five(without)}",
            remedy="name the tables as the raw files, or align by another `key`",
        )
    return _Tables(files, of_raw if is_each else {})


def _stem(key: str) -> str:
    """Return a key without the suffixes of its name: `sub/a` of `sub/a.jsonl.gz`."""
    path = PurePosixPath(key)
    return str(path.with_name(path.name.partition(".")[0] or path.name))


def write_attributes(
    shard: TokenShard,
    config: AttributeConfig,
    files: Sequence[RawFile],
    name: str,
    folder: Path,
    *,
    recipe: Recipe,
) -> None:
    """Write the attributes of one shard into the empty `folder`, manifest last. Raises: as
    `align`."""
    from tokflow.attributes.tables import TYPES, align

    started = time.perf_counter()
    found = align(shard, config, files, name)
    schema = pa.schema({column: TYPES[kind] for column, kind in config.columns.items()})
    with TableWriter(folder / ATTRIBUTES_NAME, schema, rows_per_group=65_536) as table:
        table.add(found.columns)
    manifest = Manifest(
        recipe=recipe,
        dataset=shard.manifest.dataset,
        partition=shard.manifest.partition,
        counts={
            "num_documents": len(found.columns),
            "num_without": found.num_without,
            "num_unused_rows": found.num_unused,
        },
        details={"name": name},
        files=checksums(folder, known={ATTRIBUTES_NAME: table.entry()}),
    )
    write_manifest(folder, manifest, run={"seconds": round(time.perf_counter() - started, 3)})

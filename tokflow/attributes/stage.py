"""The stage that aligns columns from outside with the documents of each token shard."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import pyarrow as pa

from tokflow.attributes.config import AttributeConfig, DeclaredAttributes
from tokflow.documents import DocumentsConfig
from tokflow.documents.user_function import UserFunction, find_function
from tokflow.errors import ConfigError, first_five
from tokflow.raw import RawConfig, RawFile, RawPartition, list_raw
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
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.shard_files import TEXT_DIGEST

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
        return dataset.of(DeclaredAttributes).named

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return the tokens, whose documents have keys, and for a function the raw files."""
        is_read = dataset.of(DeclaredAttributes).named[variant].function is not None
        return [Input(stage="tokens"), *([Input(stage="raw")] if is_read else [])]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides attributes: the documents, the tables, and what is taken of them; of
        a function its module and the texts, whatever makes tokens of these."""
        if function := _function_of(making):
            texts = making.opened("tokens").manifest.details[TEXT_DIGEST]
            return _function_recipe(_config(making), module=function.sha256, texts=texts)
        tables = _tables_of(making)
        fingerprint = making.input("tokens").fingerprint
        return _recipe(_config(making), [of.sha256 for of in tables], tokens=fingerprint)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides of the attributes of any shard."""
        config = dataset.of(DeclaredAttributes).named[variant]
        return _function_recipe(config) if config.function else _recipe(config, [])

    def writer(self, making: Making) -> Writer:
        """Return what reads the tables and aligns them, or calls the function."""
        if function := _function_of(making):
            read = making.graph.raw(making.key), making.of(DocumentsConfig)
            calls = function, *read, making.opened("tokenizer")
            made_of = making.opened("tokens"), _config(making), making.variant
            return WholeWriter(
                partial(write_attributes, *made_of, calls=calls, recipe=making.recipe)
            )
        made_of = making.opened("tokens"), _config(making), making.variant
        files = _tables_of(making)
        return WholeWriter(partial(write_attributes, *made_of, files=files, recipe=making.recipe))

    def open(self, stored: StoredOutput, inputs: Opened) -> pa.Table:
        """Return the columns, one row per document."""
        return read_table(stored.file(ATTRIBUTES_NAME))

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        config = dataset.of(DeclaredAttributes).named[variant]
        of = config.function or f"tables, by {config.key}"
        return f"{', '.join(config.columns)} of each document, of {of}."


ATTRIBUTES = AttributesStage()


def _config(making: Making) -> AttributeConfig:
    return making.of(DeclaredAttributes).named[making.variant]


def _function_of(making: Making) -> UserFunction | None:
    """Return the function of an attribute, found; None where it is of tables."""
    config, base = _config(making), making.graph.dataset.base
    if config.function is None:
        return None
    return find_function(config.function, base, where=f"attributes.{making.variant}.function")


def _function_recipe(config: AttributeConfig, **decides: str) -> Recipe:
    version = config.function_version
    fields = {
        "function": config.function,
        "columns": config.columns,
        **({} if version is None else {"function_version": version}),
        **decides,
    }
    return Recipe(stage="attributes", version=ATTRIBUTES_VERSION, config=fields, parents={})


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
        named = making.of(DeclaredAttributes).named
        return {n: _found(making.graph, n, of) for n, of in named.items() if of.files}

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
    name: str,
    folder: Path,
    *,
    files: Sequence[RawFile] = (),
    calls: tuple[UserFunction, RawPartition, DocumentsConfig, Tokenizer] | None = None,
    recipe: Recipe,
) -> None:
    """Write the attributes of one shard into the empty `folder`, manifest last: those of the tables
    `files`, or of what `compute` calls. Raises: as these."""
    from tokflow.attributes.function import compute
    from tokflow.attributes.tables import TYPES, align

    started = time.perf_counter()
    found = compute(shard, config, *calls) if calls else align(shard, config, files, name)
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

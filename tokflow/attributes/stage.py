"""The stage that aligns columns from outside with the documents of each token shard."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tokflow.attributes.config import AttributeConfig, DeclaredAttributes
from tokflow.documents import DocumentsConfig
from tokflow.documents.user_function import UserFunction, find_function
from tokflow.errors import ConfigError, first_five
from tokflow.raw import RawConfig, RawFile, list_raw
from tokflow.raw.files import hash_files
from tokflow.stage import (
    Cost,
    DatasetConfig,
    Graph,
    Input,
    Making,
    Stage,
    Tables,
    TablesWriter,
    Writer,
)
from tokflow.store.config import relocated
from tokflow.store.manifest import Recipe, joined_digest
from tokflow.tokens.shard_files import TEXT_DIGEST

if TYPE_CHECKING:  # it imports pyarrow.compute
    from tokflow.attributes.tables import Aligned

ATTRIBUTES_VERSION, EVALUATION_VERSION, GROUP_VERSION = 1, 2, 2
"""Raised when the same input would give other bytes; the second with `evaluation`, the third of
tables by `key: row` where `raw.group` makes partitions of several files."""

ATTRIBUTES_NAME = "attributes.parquet"
"""One row per document, in the order of documents.parquet; numbers are float64."""

MATCHES_NAME = "matches.parquet"
"""With `evaluation`, a row for each document and evaluation text that has a tenth of its n-grams
there, or more. document: its index in documents.parquet; evaluation_file, evaluation_row; share: of
the distinct n-grams of the text; ngram: the first of them in the document, decoded."""


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
        config, raw, source = _config(making), making.of(RawConfig), _source_of(making)
        if isinstance(source, UserFunction):
            texts = making.opened("tokens").manifest.details[TEXT_DIGEST]
            return _recipe(config, raw, {"module": source.sha256, "texts": texts}, {})
        parents = {"tokens": making.input("tokens").fingerprint}
        if config.evaluation:
            decides = {"evaluation": named_digest(source.files), "text": config.text}
            return _recipe(config, raw, decides, parents)
        return _recipe(config, raw, {"tables": source.digest(raw_files_of(making))}, parents)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides of the attributes of any shard."""
        config = dataset.of(DeclaredAttributes).named[variant]
        decides = {} if config.function else {"tables": ""}
        return _recipe(config, dataset.of(RawConfig), decides, {})

    def writer(self, making: Making) -> Writer:
        """Return what reads the tables and aligns them, or calls the function."""
        shard, config, name = making.opened("tokens"), _config(making), making.variant
        source = _source_of(making)
        from tokflow.attributes.tables import align, compute

        if isinstance(source, UserFunction):
            raw, documents = making.graph.raw(making.key), making.of(DocumentsConfig)
            made_of = shard, config, source, raw, documents, making.opened("tokenizer")
            aligned: Callable[[], Aligned] = partial(compute, *made_of)
        elif config.evaluation:
            from tokflow.attributes.contamination import compare

            files = dict(source.files)
            aligned = partial(compare, shard, config, files, making.opened("tokenizer"))
        else:
            files = source.of(raw_files_of(making))
            aligned = partial(align, shard, config, files, name, are_own=source.are_own)
        return TablesWriter.of(making, attributes_of, name, aligned)

    def files_beside(self, dataset: DatasetConfig, variant: str) -> Sequence[Path]:
        """Return the tables, the evaluation texts, or the module of the function."""
        config, where = dataset.of(DeclaredAttributes).named[variant], f"attributes.{variant}"
        if config.function:
            return [find_function(config.function, dataset.base, where=f"{where}.function").path]
        return [*paths_of(config.evaluation or config.files, dataset, where).values()]

    def reads_tokens(self, dataset: DatasetConfig, variant: str) -> bool:
        """Return whether documents are compared with evaluation texts."""
        return bool(dataset.of(DeclaredAttributes).named[variant].evaluation)

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        config = dataset.of(DeclaredAttributes).named[variant]
        of = config.function or f"tables, by {config.key}"
        of = f"the evaluation texts of {', '.join(config.evaluation)}" if config.evaluation else of
        return f"{', '.join(config.columns)} of each document, of {of}."


ATTRIBUTES = AttributesStage()


def _config(making: Making) -> AttributeConfig:
    return making.of(DeclaredAttributes).named[making.variant]


def _recipe(
    config: AttributeConfig,
    raw: RawConfig,
    decides: Mapping[str, str],
    parents: Mapping[str, str],
) -> Recipe:
    of_function = {
        name: of
        for name in ("function", "function_version")
        if (of := getattr(config, name)) is not None
    }
    of_table = {} if config.evaluation else {"key": config.key}
    fields = {"columns": config.columns, **(of_function or of_table), **decides}
    version = EVALUATION_VERSION if config.evaluation else ATTRIBUTES_VERSION
    if config.files and config.key == "row" and raw.group is not None:
        version = GROUP_VERSION
    return Recipe(stage="attributes", version=version, config=fields, parents=parents)


@dataclass(frozen=True)
class _Tables:
    """The tables of an attribute."""

    files: Mapping[str, RawFile]
    """By their keys or, of raw files of their own, by those of these."""
    are_own: bool
    """True if each is of the raw file of its name; else all go with all."""

    def of(self, raw_files: Sequence[str]) -> dict[str, RawFile]:
        """Return the tables that documents of some raw files are looked up in."""
        if not self.are_own:
            return dict(self.files)
        return {key: self.files[key] for key in raw_files if key in self.files}

    def digest(self, raw_files: Sequence[str]) -> str:
        """Return the digest of the tables of some raw files."""
        return _digest_of(self.of(raw_files)) if self.are_own else self._digest_of_all

    @cached_property
    def _digest_of_all(self) -> str:
        return _digest_of(self.files)


def _digest_of(files: Mapping[str, RawFile]) -> str:
    return joined_digest(of.sha256 for of in files.values())


def named_digest(files: Mapping[str, RawFile]) -> str:
    """Return the digest of files and of their names."""
    return joined_digest(f"{key}\0{of.sha256}" for key, of in files.items())


def raw_files_of(making: Making) -> list[str]:
    """Return the keys of the raw files of a partition."""
    return [of.key for of in making.graph.partitions[making.key]]


def _source_of(making: Making) -> _Tables | UserFunction:
    """Return the tables or the function of an attribute, found once for all partitions.

    Raises: TokflowError.
    """
    found = making.graph.shared(ATTRIBUTES, dict[str, _Tables | UserFunction])
    if (name := making.variant) not in found:
        config, graph = _config(making), making.graph
        where = f"attributes.{name}.function"
        found[name] = (
            find_function(config.function, graph.dataset.base, where=where)
            if config.function
            else _tables(graph, name, config)
        )
    return found[name]


def _tables(graph: Graph, name: str, config: AttributeConfig) -> _Tables:
    """Return the tables of an attribute, hashed. Raises: ConfigError, RawFileError."""
    where = f"attributes.{name}.{'evaluation' if config.evaluation else 'files'}"
    files = tables_of(config.evaluation or config.files, graph.dataset, where)
    if config.evaluation:
        return _Tables(files, are_own=False)
    raw_files = {_stem(key): key for key in graph.sources}
    of_raw = {raw_files[_stem(key)]: of for key, of in files.items() if _stem(key) in raw_files}
    are_own = len(of_raw) == len(files) and len(raw_files) == len(graph.sources)
    if config.key == "row" and not are_own:
        raise ConfigError(
            where=where,
            expected="a table for each raw file, of its name, for `key: row` counts in each",
            found=f"tables of other names, such as {first_five(list(files))}",
            remedy="name the tables as the raw files, or align by another `key`",
        )
    return _Tables(of_raw if are_own else files, are_own)


def tables_of(patterns: tuple[str, ...], dataset: DatasetConfig, where: str) -> dict[str, RawFile]:
    """Return the files that paths and patterns of a YAML name, by their keys, hashed. Raises: as
    `paths_of`; RawFileError."""
    return hash_files(paths_of(patterns, dataset, where), store=dataset.folder)


def paths_of(patterns: tuple[str, ...], dataset: DatasetConfig, where: str) -> dict[str, Path]:
    """Return the files that paths and patterns of a YAML name, by their keys.

    Raises: ConfigError where there are none, and for files elsewhere.
    """
    try:
        sources = list_raw(RawConfig(files=patterns), base=dataset.base).sources
    except ConfigError as error:
        raise relocated(error, where) from None
    if far := [key for key, of in sources.items() if not of.is_local]:
        raise ConfigError(
            where=where, expected="files of this disk", found=far[0], remedy="copy them here"
        )
    return {key: Path(of.url) for key, of in sources.items()}


def _stem(key: str) -> str:
    """Return a key without the suffixes of its name: `sub/a` of `sub/a.jsonl.gz`."""
    path = PurePosixPath(key)
    return str(path.with_name(path.name.partition(".")[0] or path.name))


def attributes_of(name: str, aligned: "Callable[[], Aligned]") -> Tables:
    """Return the attributes of one shard. Raises: as `aligned`, which gives them."""
    found = aligned()
    tables = {ATTRIBUTES_NAME: found.columns}
    tables |= {} if found.matches is None else {MATCHES_NAME: found.matches}
    counts = {"num_documents": len(found.columns), "num_without": found.num_without}
    counts |= {} if found.num_unused is None else {"num_unused_rows": found.num_unused}
    return tables, {**counts, **found.counts}, {"name": name, **found.details}

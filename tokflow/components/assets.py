"""Assets of a dataset, one for each stage: their keys and parents, partition set and jobs by name,
and their columns with lineage."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import dagster as dg

from tokflow.documents.user_function import find_function
from tokflow.errors import ConfigError, TokflowError
from tokflow.exports.columns import schema_of
from tokflow.exports.config import DeclaredExports
from tokflow.exports.stage import EXPORT
from tokflow.exports.table_files import names_in_files
from tokflow.formatting import redact
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.fields import dagster_name, longest_pause
from tokflow.raw.globs import format_of_name
from tokflow.stage import RAW, Input, stage_named
from tokflow.tokens.shard_files import DOCUMENTS_SCHEMA
from tokflow.tokens.stage import TOKENS
from tokflow.views.picture import has_report

FILES = "files"
"""The asset that lists the raw files."""

REPORT = "report"
"""The asset that is a page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnAsset:
    """An asset that no stage of the pipeline makes."""

    kind: str = "file"
    """Its tag in Dagster."""
    about: str
    """Its description, in Markdown."""
    is_of_file: bool = False
    """True if it has one partition for each raw file, or group of them."""
    inputs: Callable[[Dataset], Sequence[Input]] = lambda _: ()
    """Returns its parents."""


def _inputs_of_report(dataset: Dataset) -> list[Input]:
    """Return the exports of a dataset or, without any, the last stage before them."""
    made = [(of, variant) for of in dataset.stages for variant in of.variants(dataset)]
    exports = [Input(stage=of.name, variant=variant) for of, variant in made if of.has_latest]
    last, variant = made[-1]
    return exports or [Input(stage=last.name, reach="all", variant=variant)]


OWN_ASSETS: Mapping[str, OwnAsset] = {
    RAW: OwnAsset(
        is_of_file=True,
        about="The raw files as they are, one partition each. They are read where they stand, or "
        "fetched; none is ever changed.",
    ),
    FILES: OwnAsset(
        about="The list of the raw files with the status of each: failed, stale, new or built. "
        "Exports hold what is on this list, so a file that comes or goes makes them stale.",
        inputs=lambda _: [Input(stage=RAW, reach="all")],
    ),
    REPORT: OwnAsset(
        kind="html",
        about="Pictures and tables of the dataset on one page: lengths, bytes per token, shares, "
        "fill, rejects and samples. Builds in Dagster draw it last, whenever an export is another.",
        inputs=_inputs_of_report,
    ),
}


class Translator:
    """Keys, groups, tags and descriptions of the assets of a dataset, and by a subclass that its
    YAML names, `translator: package.module:Class`, other ones.

    `stage` is that of one asset: `raw`, `files`, `tokenizer`, `tokens`, `split`, `sequences`,
    `export` or `report`; `name` is that of an export or a packing. The same arguments must give the
    same: history, checks and lineage know an asset by its key.
    """

    def asset_key(self, dataset: Dataset, stage: str, name: str) -> dg.AssetKey:
        """Return the key: `[<dataset>, <stage>]`, `[<dataset>, "exports", <name>]` or
        `[<dataset>, "sequences", <name>]`, after the prefix that the dataset asks for."""
        step = stage_named(dataset.stages, stage)
        own = filter(None, [step.path if step else stage, name])
        return dg.AssetKey([*dataset.key_prefix, dataset.name, *own])

    def group(self, dataset: Dataset, stage: str, name: str) -> str:
        """Return the group: the dataset's name."""
        return dagster_name(dataset.name)

    def tags(self, dataset: Dataset, stage: str, name: str) -> Mapping[str, str]:
        """Return the tags: those of the YAML."""
        return dataset.tags

    def description(self, dataset: Dataset, stage: str, name: str) -> str:
        """Return the description, in Markdown."""
        step = stage_named(dataset.stages, stage)
        return step.about(dataset, name) if step else OWN_ASSETS[stage].about


def translator_of(dataset: Dataset) -> Translator:
    """Return the translator that the YAML of a dataset names. Raises: ConfigError."""
    named, where = dataset.translator, f"{dataset.name}: translator"
    return _translator(named, dataset.base, where) if named else Translator()


@cache
def _translator(named: str, base: Path, where: str) -> Translator:
    found = find_function(named, base, where=where).load()
    if not (isinstance(found, type) and issubclass(found, Translator)):
        raise ConfigError(
            where=where,
            expected="a subclass of tokflow.components.Translator",
            found=f"{found!r}",
            remedy="name one, as `package.module:Class`",
        )
    return found()


def is_partitioned(dataset: Dataset, stage: str) -> bool:
    """Return whether an asset has one partition for each raw file, or group of them."""
    return (stage_named(dataset.stages, stage) or OWN_ASSETS[stage]).is_of_file


def is_of_all_files(dataset: Dataset, stage: str) -> bool:
    """Return whether an asset is made of all partitions together, as an export is."""
    step = stage_named(dataset.stages, stage)
    return not (step.is_of_file or step.decides_all if step else OWN_ASSETS[stage].is_of_file)


def asset_key(dataset: Dataset, stage: str, name: str = "") -> dg.AssetKey:
    """Return the key of one asset."""
    return translator_of(dataset).asset_key(dataset, stage, name)


def asset_keys(dataset: Dataset) -> dict[tuple[str, str], dg.AssetKey]:
    """Return the keys of all assets by their stage and variant: the name of an export, or of the
    packing of sequences."""
    assets = [(RAW, ""), (FILES, "")] if dataset.mixture is None else []
    assets += [(of.name, variant) for of in dataset.stages for variant in of.variants(dataset)]
    assets += [(REPORT, "")] if dataset.report and has_report() else []
    return {asset: asset_key(dataset, *asset) for asset in assets}


def parents(
    dataset: Dataset, stage: str, name: str = ""
) -> dict[dg.AssetKey, dg.PartitionMapping | None]:
    """Return what an asset is made from, and whether each partition from all partitions of it.

    Other mappings Dagster infers itself, which takes only one for each parent of a step.
    """
    step = stage_named(dataset.stages, stage)
    inputs = step.inputs(dataset, name) if step else OWN_ASSETS[stage].inputs(dataset)
    found: dict[dg.AssetKey, dg.PartitionMapping | None] = {}
    sources = {of.name: of for of in dataset.sources}
    for of in inputs:
        is_own = bool(stage_named(dataset.stages, of.stage) or OWN_ASSETS.get(of.stage))
        owners = (dataset,) if is_own and not of.dataset else dataset.sources
        for having in [sources[of.dataset]] if of.dataset else owners:
            is_split_up = is_partitioned(having, of.stage) and is_partitioned(dataset, stage)
            is_all = is_split_up and (of.reach == "all" or having is not dataset)
            mapping = dg.AllPartitionMapping() if is_all else None
            found[asset_key(having, of.stage, of.variant)] = mapping
    of_all = [of for of in inputs if of.is_of_all and not of.dataset]
    if of_all and step and not step.is_of_file and dataset.mixture is None:
        found[asset_key(dataset, FILES)] = None
    return found


def partition_set(dataset: Dataset) -> dg.DynamicPartitionsDefinition:
    """Return the partitions of a dataset: its raw files."""
    return dg.DynamicPartitionsDefinition(name=f"{dagster_name(dataset.name)}_files")


def scan_job_name(dataset: Dataset) -> str:
    """Return the name of the job that looks for new, changed and removed raw files."""
    return f"{dagster_name(dataset.name)}_scan"


def build_job_name(dataset: Dataset) -> str:
    """Return the name of the job that builds everything."""
    return f"{dagster_name(dataset.name)}_build"


LISTING_VERSION = "1"
"""Raised when the same raw files would give another list, or be taken otherwise."""


def code_version(dataset: Dataset, stage: str, name: str = "") -> str:
    """Return what the config and the code contribute to the recipes of a stage's outputs.

    By the stage's own rule, without a look at any file. `name`: that of an export or a packing.
    """
    step = stage_named(dataset.stages, stage)
    return step.declared_recipe(dataset, name).code_version if step else LISTING_VERSION


def asset_specs(dataset: Dataset) -> list[dg.AssetSpec]:
    """Return the assets of a dataset, parents first.

    Raises: ConfigError where its translator names them as Dagster does not take it.
    """
    try:
        specs = [_spec(dataset, *asset) for asset in asset_keys(dataset)]
        if len({of.key for of in specs}) < len(specs):
            raise ValueError("two assets of one key")
    except TokflowError:
        raise
    except Exception as error:  # of a translator, or of Dagster for what it returns
        raise ConfigError(
            where=f"{dataset.name}: translator {dataset.translator}",
            expected="keys, groups, tags and descriptions that Dagster takes, a key for each asset",
            found=f"{type(error).__name__}: {error}",
            remedy="correct the method of the class",
        ) from error
    return specs


def _spec(dataset: Dataset, stage: str, name: str) -> dg.AssetSpec:
    """Return one asset with what all assets of a dataset have."""
    step, of_parents = stage_named(dataset.stages, stage), parents(dataset, stage, name)
    translator = translator_of(dataset)
    if step is None:
        kinds, fields = {OWN_ASSETS[stage].kind}, dict[str, Any]()
        if kinds == {"file"}:
            beside = {"config", "split", "revision"}
            fields = dataset.raw.model_dump(include=beside, exclude_none=True)
            fields |= {"files": list(dataset.raw.files)}
    else:
        kinds, config = {*step.kinds(dataset, name)}, step.variants(dataset)[name]
        fields = config if isinstance(config, dict) else config.model_dump(exclude_defaults=True)
    shown = {"config": dg.MetadataValue.json(_redacted(fields))} if fields else {}
    freshness = None
    if step and step.has_latest and dataset.schedule:
        # Overdue once two scheduled builds have not made or confirmed it; the warning comes half a
        # pause earlier.
        pause = longest_pause(dataset.schedule)
        freshness = dg.FreshnessPolicy.time_window(fail_window=2 * pause, warn_window=1.5 * pause)
    return dg.AssetSpec(
        asset_key(dataset, stage, name),
        deps=[dg.AssetDep(of, partition_mapping=mapping) for of, mapping in of_parents.items()],
        partitions_def=partition_set(dataset) if is_partitioned(dataset, stage) else None,
        group_name=translator.group(dataset, stage, name),
        kinds=kinds,
        owners=list(dataset.owners),
        tags=translator.tags(dataset, stage, name),
        description=translator.description(dataset, stage, name),
        metadata={**shown, **column_metadata(dataset, stage, name)},
        code_version=code_version(dataset, stage, name),
        freshness_policy=freshness,
    )


def _redacted(value: Any) -> Any:
    """Return a config without the secrets in its URLs."""
    if isinstance(value, dict):
        return {name: _redacted(of) for name, of in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(of) for of in value]
    return redact(value) if isinstance(value, str) else value


DOCUMENT_COLUMNS = {
    "row": "ordinal in the raw file; rejects leave a gap",
    "char_offset": "code points before it in the file's documents",
    "num_chars": "code points",
    "num_bytes": "bytes of its UTF-8",
    "token_offset": "tokens before it in tokens.bin",
    "num_tokens": "tokens, BOS and EOS included",
    "text_hash": "xxh3-128 of the UTF-8 text",
}

EXPORT_COLUMNS = {
    "input_ids": "token ids",
    "attention_mask": "1 at tokens, 0 at padding",
    "segment_ids": "1, 2, ... in each sequence; 0 is padding",
    "position_ids": "0 at each segment's first token",
    "loss_mask": "1 at loss tokens",
    "labels": "the token where it is a loss token and begins no segment, else -100; not shifted",
    "next_loss_mask": "1 where the next token of the segment is a loss token",
    "seq_lengths": "tokens of each segment",
    "seq_start_id": "position of each segment's first token",
}

Column: TypeAlias = tuple[dg.TableColumn, list[dg.TableColumnDep]]


def column_metadata(dataset: Dataset, stage: str, name: str = "") -> dict[str, Any]:
    """Return the schema of an asset's columns and their lineage; {} where it has no columns."""
    of_asset = COLUMNS.get(stage)
    columns = list(of_asset(dataset, name)) if of_asset else []
    lineage = {column.name: deps for column, deps in columns if deps}
    schema = dg.TableSchema([column for column, _ in columns])
    return {
        **({"dagster/column_schema": schema} if columns else {}),
        **({"dagster/column_lineage": dg.TableColumnLineage(lineage)} if lineage else {}),
    }


def _token_columns(dataset: Dataset, _: str) -> Iterator[Column]:
    """Yield the columns of the table of documents, with those that their text is read from."""
    raw = asset_key(dataset, RAW)
    of_text = [dg.TableColumnDep(raw, of) for of in _columns_of_text(dataset)]
    for of in DOCUMENTS_SCHEMA:
        column = dg.TableColumn(of.name, str(of.type), DOCUMENT_COLUMNS[of.name])
        yield column, [] if of.name == "row" else of_text


def _export_columns(dataset: Dataset, name: str) -> Iterator[Column]:
    """Yield the columns of a format of tables, with those of tokens or raw files behind them."""
    exports = dataset.of(DeclaredExports)
    config = exports.config(name)
    is_of_one = exports.packing_of(config).is_of_one_document(dataset.parts)
    kept = tuple(dataset.documents.keep_columns) if is_of_one else ()
    columns = config.layout.columns
    names = [*names_in_files(config.options, columns), *kept]
    for of, name in zip(schema_of(columns, kept), names, strict=True) if columns else ():
        described = EXPORT_COLUMNS.get(of.name, "a kept column of the raw file, as text")
        yield dg.TableColumn(name, str(of.type), described), _sources_of(dataset, of.name)


_BESIDE_CHATS = {
    "system": ("string", "what the system says first in a chat"),
    "tools": ("list", "definitions of the tools of a chat"),
    "chat_template_kwargs_column": ("object", "names for the template of a chat"),
}
"""Kind and description of columns that are read beside chats, by the field that names them."""


def _raw_columns(dataset: Dataset, _: str) -> Iterator[Column]:
    """Yield the columns that are read; a raw file may have more."""
    documents = dataset.documents
    kind, described = "string", "text of documents"
    if documents.is_rendered:
        kind, described = "list", "chats, whose assistant's turns are loss tokens"
    elif documents.transform is not None:
        kind, described = "any", f"what {documents.transform} makes documents of"
    for column in _columns_of_text(dataset):
        of_column = _BESIDE_CHATS.get(documents.field_of(column), (kind, described))
        yield dg.TableColumn(column, *of_column), []
    for column in documents.keep_columns:
        if column not in documents.columns:
            yield dg.TableColumn(column, "any", "kept for each document"), []


COLUMNS: Mapping[str, Callable[[Dataset, str], Iterator[Column]]] = {
    RAW: _raw_columns,
    TOKENS.name: _token_columns,
    EXPORT.name: _export_columns,
}
"""Columns of the assets that are tables, each with the columns of other assets that decide it."""


def _columns_of_text(dataset: Dataset) -> tuple[str, ...]:
    """Return the columns that documents are made of; none where all names are of plain text."""
    documents = dataset.documents
    names = dataset.raw.files if documents.format == "auto" else ()
    is_txt = documents.format == "txt" or {format_of_name(of) for of in names} == {"txt"}
    return () if is_txt else documents.columns


def _sources_of(dataset: Dataset, column: str) -> list[dg.TableColumnDep]:
    """Return what decides a column of an export: that of the raw files, or the documents."""
    sources = dataset.sources or (dataset,)
    if column not in EXPORT_COLUMNS:
        keep = [of for of in sources if column in of.documents.keep_columns]
        return [dg.TableColumnDep(asset_key(of, RAW), column) for of in keep]
    return [
        dg.TableColumnDep(asset_key(of, TOKENS.name), name)
        for of in sources
        for name in ("token_offset", "num_tokens")
    ]

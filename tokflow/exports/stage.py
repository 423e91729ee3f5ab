"""The stage that writes exports: each of all partitions, in somebody's format."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tokflow.errors import TokflowError
from tokflow.exports.columns import LABELS_VERSION
from tokflow.exports.config import DeclaredExports, ExportConfig
from tokflow.exports.formats import FORMATS
from tokflow.exports.index import INDEX_VERSION
from tokflow.exports.part import Part, make_parts
from tokflow.exports.reading import Export
from tokflow.exports.shuffled_documents import GROUP_TOKENS
from tokflow.exports.writing import ExportWriter
from tokflow.sequences.config import Packings
from tokflow.split.rule import PartConfig, SplitConfig
from tokflow.split.shuffle import ShuffleConfig, shuffle_fields
from tokflow.stage import Cost, DatasetConfig, Input, Making, Opened, Stage, stages_giving
from tokflow.store.links import LATEST
from tokflow.store.manifest import Recipe
from tokflow.store.store import StoredOutput
from tokflow.store.stored_outputs import output_at
from tokflow.store.versions import known_changes

ABOUT = "{}. It is made from all raw files; `latest` in its folder leads to the newest."


class ExportStage(Stage):
    """The exports of a dataset, each a variant: formats are a registry below it."""

    name = "export"
    folder = "exports"
    is_of_file = False
    has_latest = True
    cost = Cost(0.1, 1 / 100e6)

    def variants(self, dataset: DatasetConfig) -> Mapping[str, ExportConfig]:
        """Return the configs of the exports by their names."""
        return {of.name: of for of in dataset.of(DeclaredExports).configs}

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return the sequences of its packing or, of a stream, the splits of all partitions."""
        for packing, exports in dataset.of(Packings).exports.items():
            if variant in exports:
                return [Input(stage="sequences", reach="all", variant=packing)]
        return [Input(stage="split", reach="all")]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides an export: the outputs of all partitions, format and packing."""
        dataset, variant = making.graph.dataset, making.variant
        inputs = making.inputs(self.inputs(dataset, variant)[0].stage)
        parents = {key: of.fingerprint for key, of in inputs.items()}
        declared, bad = self.declared_recipe(dataset, variant), [*making.graph.bad_files]
        config = {**declared.config, **({"bad_files": bad} if bad else {})}
        return replace(declared, config=config, parents=parents)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides, whatever files there are."""
        exports, order = dataset.of(DeclaredExports), dataset.of(ShuffleConfig).of_export
        config = exports.config(variant)
        fields: dict[str, Any] = {"format": config.format, "options": config.options.model_dump()}
        if config.layout.is_packed:
            fields["packing"] = exports.packing_of(config).fields_of_export()
            fields |= {} if order.documents is None else {"group_tokens": GROUP_TOKENS}
            fields |= shuffle_fields(order.sequences)
        fields |= order.document_fields()
        fields |= known_changes("export", config.format)
        version = FORMATS[config.format].version + INDEX_VERSION
        version += LABELS_VERSION if "labels" in config.layout.columns else 0
        return Recipe(stage="export", version=version, config=fields, parents={})

    def writer(self, making: Making) -> ExportWriter:
        """Return what writes an export, its segments too.

        Raises: MissingOutputError where a partition is not built; ConfigError where no token of
        chats is supervised.
        """
        parts, config = parts_of(making), making.of(DeclaredExports).config(making.variant)
        last = None
        with suppress(TokflowError, OSError):  # there is none, or none that can be read
            store = parts[0].splits[0].store
            found = output_at(store, making.folder.parent / LATEST)
            if found and found.folder != making.folder and store.is_intact(found.folder):
                last = found
        return ExportWriter(
            parts=parts,
            config=config,
            last=last,
            dataset=making.graph.dataset.name,
            recipe=making.recipe,
            details=making.graph.export_details(),
        )

    def open(self, stored: StoredOutput, inputs: Opened) -> Export:
        """Return the export as it is read."""
        return Export(stored)

    def kinds(self, dataset: DatasetConfig, variant: str) -> Sequence[str]:
        """Return the format as a tag."""
        return [dataset.of(DeclaredExports).config(variant).format]

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        text = FORMATS[dataset.of(DeclaredExports).config(variant).format].description
        return ABOUT.format(text.replace("<", r"\<"))  # no tag of Markdown


EXPORT = ExportStage()


def is_all_tokens(dataset: DatasetConfig) -> bool:
    """Return whether an export may be one file of all tokens, as partitions have them."""
    exports, shuffle = dataset.of(DeclaredExports), dataset.of(ShuffleConfig)
    parts = [*dataset.of(SplitConfig).parts.values()]
    return (
        any(of.format == "bin" for of in exports.configs)
        and parts in ([PartConfig(start=0)], [PartConfig(fraction=1.0)])
        and not (shuffle.documents or stages_giving(dataset, "selection", "strata"))
    )


def parts_of(making: Making) -> Sequence[Part]:
    """Return what an export is made from; every partition must have been built.

    Raises: MissingOutputError that names the first partitions that have not.
    """
    dataset, exports = making.graph.dataset, making.of(DeclaredExports)
    config = exports.config(making.variant)
    [made_of] = EXPORT.inputs(dataset, making.variant)
    files = making.opened_all(made_of.stage)
    return make_parts(
        dataset.parts,
        making.graph.token_details(),
        files,
        exports.packing_of(config),
        order=dataset.of(ShuffleConfig).of_export,
        is_packed=config.layout.is_packed,
    )

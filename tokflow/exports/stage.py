"""The stage that writes exports: each of all partitions, in somebody's format."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tokflow.errors import TokflowError
from tokflow.exports.config import DeclaredExports, ExportConfig, export_recipe
from tokflow.exports.formats import FORMATS
from tokflow.exports.part import Part, make_parts
from tokflow.exports.reading import Export
from tokflow.exports.writing import ExportWriter
from tokflow.split.rule import PartConfig, SplitConfig
from tokflow.split.shuffle import ShuffleConfig
from tokflow.stage import Cost, DatasetConfig, Input, Making, Opened, Stage, selection_stages
from tokflow.store.latest import LATEST
from tokflow.store.manifest import Recipe
from tokflow.store.store import Store, StoredOutput
from tokflow.store.stored_outputs import output_at

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
        return [_input(dataset, variant)]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides an export: the outputs of all partitions, format and packing."""
        inputs = making.inputs(_input(making.graph.dataset, making.variant).stage)
        parents = {key: of.fingerprint for key, of in inputs.items()}
        return _recipe(making.graph.dataset, making.variant, parents)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides, whatever files there are."""
        return _recipe(dataset, variant, {})

    def writer(self, making: Making) -> ExportWriter:
        """Return what writes an export, its segments too.

        Raises: MissingOutputError where a partition is not built; ConfigError where no token of
        chats is supervised.
        """
        parts, config = parts_of(making), making.of(DeclaredExports).config(making.variant)
        last = None
        if getattr(config.options, "is_by_file", False):
            last = _last_export(parts[0].splits[0].store, making.folder)
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


def _last_export(store: Store, folder: Path) -> StoredOutput | None:
    """Return the export that was made before the one in a folder, if its files can be linked."""
    with suppress(TokflowError, OSError):  # none, or none that can be read
        found = output_at(store, folder.parent / LATEST)
        if found and found.folder != folder and store.is_intact(found.folder):
            return found
    return None


def _input(dataset: DatasetConfig, name: str) -> Input:
    exports = dataset.of(DeclaredExports)
    config = exports.config(name)
    if exports.is_made_of_sequences(config):
        return Input(stage="sequences", reach="all", variant=exports.packing_name(config))
    return Input(stage="split", reach="all")


def _recipe(dataset: DatasetConfig, name: str, parents: Mapping[str, str]) -> Recipe:
    exports, order = dataset.of(DeclaredExports), dataset.of(ShuffleConfig).of_export
    config = exports.config(name)
    return export_recipe(config, exports.packing_of(config), parents, order=order)


def is_all_tokens(dataset: DatasetConfig) -> bool:
    """Return whether an export may be one file of all tokens, as partitions have them."""
    exports, shuffle = dataset.of(DeclaredExports), dataset.of(ShuffleConfig)
    parts = [*dataset.of(SplitConfig).parts.values()]
    return (
        any(of.format == "bin" for of in exports.configs)
        and parts in ([PartConfig(start=0)], [PartConfig(fraction=1.0)])
        and not (shuffle.documents or selection_stages(dataset))
    )


def parts_of(making: Making) -> Sequence[Part]:
    """Return what an export is made from; every partition must have been built.

    Raises: MissingOutputError that names the first partitions that have not.
    """
    dataset, exports = making.graph.dataset, making.of(DeclaredExports)
    config = exports.config(making.variant)
    files = making.opened_all(_input(dataset, making.variant).stage)
    return make_parts(
        dataset.of(SplitConfig).parts,
        making.graph.token_details(),
        files,
        exports.packing_of(config),
        order=dataset.of(ShuffleConfig).of_export,
        is_packed=config.layout.is_packed,
    )

"""The stage that gives each document, or span of one, to a part."""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, ClassVar, cast

from tokflow.documents import DocumentsConfig
from tokflow.split.cut_tokens import CutEncoder, write_cut_tokens
from tokflow.split.mixed_split import (
    MixtureShare,
    mixed_split_recipe,
    shard_in_mixture,
    share_of,
    write_mixed_split,
)
from tokflow.split.mixture import MixtureConfig
from tokflow.split.rule import FilePosition, SplitConfig
from tokflow.split.shuffle import ShuffleConfig
from tokflow.split.spans import Split, split_recipe, write_split
from tokflow.stage import (
    Cost,
    DatasetConfig,
    Input,
    Making,
    Opened,
    Stage,
    WholeWriter,
    Writer,
    stages_giving,
)
from tokflow.store.config import Config
from tokflow.store.manifest import Recipe
from tokflow.store.store import StoredOutput

ABOUT = "Which text belongs to {}. It is a table of spans; no token is copied."


class SplitStage(Stage):
    """The split of each token shard: spans of its documents by part."""

    name = "split"
    config: ClassVar[type[Config]] = SplitConfig
    cost = Cost(0.005)

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return the tokens, and selections of their documents, those of all partitions where
        parts count through the dataset; and their strata."""
        strata = [Input(stage=of.name) for of in stages_giving(dataset, "strata")]
        stages = ["tokens", *(of.name for of in stages_giving(dataset, "selection"))]
        if dataset.of(SplitConfig).scope == "file":
            return [*(Input(stage=of) for of in stages), *strata]
        why, remedy = ", through which scope: dataset counts", "set split.scope: file"
        remedy = f"fix what is wrong with them, or {remedy}"
        of_all = [Input(stage=of, reach="all", why_all=why, remedy=remedy) for of in stages]
        return [*of_all, *strata]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides a split: the tokens, the rule, and where the file stands."""
        of_all = making.graph.shared((self, "recipe"), partial(_recipe_of_all, making))
        giving = stages_giving(making.graph.dataset, "selection", "strata")
        stages = ["tokens", *(of.name for of in giving if not of.keeps_all(making))]
        parents = {name: making.input(name).fingerprint for name in stages}
        return (of_all or _recipe(making)).with_parents(parents)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides of the split of any partition."""
        config = dataset.of(SplitConfig)
        of_any = {field.name: int(config.scope == "dataset") for field in fields(FilePosition)}
        seed = dataset.of(ShuffleConfig).of_documents
        return split_recipe(config, FilePosition(**of_any), "", shuffle_seed=seed)

    def writer(self, making: Making) -> Writer:
        """Return what makes a split; spans of cut documents are tokenized again."""
        return WholeWriter(
            partial(
                write_split,
                making.opened("tokens"),
                split_config(making),
                position=position_of(making),
                encode_cut=cut_encoder(making),
                selections=making.given("selection"),
                strata=making.given("strata"),
                dataset=making.graph.dataset.name,
                recipe=making.recipe,
                shuffle_seed=making.of(ShuffleConfig).of_documents,
            )
        )

    def open(self, stored: StoredOutput, inputs: Opened) -> Split:
        """Return the split over its token shard."""
        return Split(stored, inputs.opened("tokens"))

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        *rest, last = dataset.parts
        return ABOUT.format(f"{', '.join(rest)} or {last}" if rest else last)


SPLIT = SplitStage()


def _recipe(making: Making) -> Recipe:
    """Return what decides a split beside what it is made from."""
    key, seed = making.graph.partitions[making.key][0].key, making.of(ShuffleConfig).of_documents
    return split_recipe(split_config(making), position_of(making), key, shuffle_seed=seed)


def _recipe_of_all(making: Making) -> Recipe | None:
    """Return the `_recipe` that the splits of all files have; None where each has its own."""
    is_of_file = making.of(SplitConfig).depends_on_file
    is_shuffled = making.of(ShuffleConfig).of_documents is not None
    return None if is_of_file or is_shuffled else _recipe(making)


def split_config(making: Making) -> SplitConfig:
    """Return the split of a partition, whose raw files are of one part where parts take files."""
    first = making.graph.partitions[making.key][0]
    return making.of(SplitConfig).of_file(first.key, first.source_split)


def position_of(making: Making) -> FilePosition:
    """Return where a partition stands in its dataset; the same for all with scope file.

    Raises: MissingOutputError where the tokens of a partition, or their selection, are not there.
    """
    if making.of(SplitConfig).scope == "file":
        return FilePosition()
    return making.graph.shared(SPLIT, partial(_positions, making))[making.key]


def _positions(making: Making) -> dict[str, FilePosition]:
    """Return where each partition stands, by the selected documents of those before it.

    Raises: MissingOutputError.
    """
    stages = [of.name for of in stages_giving(making.graph.dataset, "selection")] or ["tokens"]
    counts = {key: of.counts for key, of in making.inputs(stages[0]).items()}
    is_drawn = making.of(SplitConfig).form == "fraction"
    total = sum(of["num_documents"] for of in counts.values()) if is_drawn else 0
    positions = {}
    first_char = first_document = 0
    for key, of_file in counts.items():
        positions[key] = FilePosition(
            first_char=first_char, first_document=first_document, total_documents=total
        )
        first_char += of_file["num_chars"]
        first_document += of_file["num_documents"]
    return positions


def cut_encoder(making: Making) -> CutEncoder:
    """Return the encoder of what the split of one partition cuts."""
    documents = making.of(DocumentsConfig)
    return partial(
        write_cut_tokens,
        raw=making.graph.raw(making.key),
        documents=documents,
        encoding=making.graph.encoding,
    )


class MixedSplitStage(SplitStage):
    """The splits of a mixture: spans of the splits of its sources, as its plan has them."""

    config = MixtureConfig

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return the splits of all partitions of each source."""
        sources = dataset.of(MixtureConfig).datasets
        return [Input(stage=self.name, reach="all", dataset=of) for of in sources]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides a split: the source's and the share of it."""
        fingerprint = making.input(self.name).fingerprint
        seed = making.of(ShuffleConfig).of_documents
        return mixed_split_recipe(fingerprint, _share(making), shuffle_seed=seed)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides of any split."""
        config = dataset.of(MixtureConfig)
        seed = dataset.of(ShuffleConfig).of_documents
        share = MixtureShare(key="", tokens={}, seed=config.seed)
        recipe = mixed_split_recipe("", share, shuffle_seed=seed)
        own = config.model_dump(exclude={"sources": {"__all__": {"config"}}})
        return replace(recipe, config={**recipe.config, "mixture_config": own})

    def writer(self, making: Making) -> Writer:
        """Return what takes the share of a source's split."""
        return WholeWriter(
            partial(
                write_mixed_split,
                making.opened(self.name),
                _share(making),
                tokenizer=making.opened("tokenizer"),
                dataset=making.graph.dataset.name,
                recipe=making.recipe,
                shuffle_seed=making.of(ShuffleConfig).of_documents,
            )
        )

    def open(self, stored: StoredOutput, inputs: Opened) -> Split:
        """Return the split over its source's."""
        shard = shard_in_mixture(inputs.opened(self.name), share_of(stored.manifest))
        return Split(stored, shard)


MIXED_SPLIT = MixedSplitStage()


def _share(making: Making) -> MixtureShare:
    """Return what a mixture takes of the split of a source."""
    plan = cast(Any, making.graph).mixture_plan  # that of a MixtureGraph, which knows this stage
    return cast(MixtureShare, plan.share(making.key))

"""A stage of somebody else: it leaves out documents of fewer characters than asked for."""

from functools import partial
from pathlib import Path

import numpy as np

from tokflow.stage import DatasetConfig, Input, Making, Opened, Stage, WholeWriter, Writer
from tokflow.store.config import Config
from tokflow.store.manifest import Manifest, Recipe, checksums, write_manifest
from tokflow.store.store import StoredOutput
from tokflow.store.tables import to_numpy
from tokflow.tokens.shard import TokenShard


class MinCharacters(Config):
    """Documents to leave out."""

    least: int = 0


class MinCharactersStage(Stage):
    name = "min_characters"
    section = MinCharacters
    gives = "selection"

    def variants(self, dataset: DatasetConfig) -> dict[str, MinCharacters]:
        config = dataset.of(MinCharacters)
        return {"": config} if config.least else {}

    def inputs(self, dataset: DatasetConfig, variant: str) -> list[Input]:
        return [Input(stage="tokens")]

    def recipe(self, making: Making) -> Recipe:
        return recipe_of(making.of(MinCharacters), tokens=making.input("tokens").fingerprint)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        return recipe_of(dataset.of(MinCharacters))

    def writer(self, making: Making) -> Writer:
        made_of = making.opened("tokens"), making.of(MinCharacters).least, making.recipe
        return WholeWriter(partial(write_selection, *made_of))

    def open(self, stored: StoredOutput, inputs: Opened) -> np.ndarray:
        return np.load(stored.file("selected.npy"))


def recipe_of(config: MinCharacters, **parents: str) -> Recipe:
    return Recipe(stage="min_characters", version=1, config=config.model_dump(), parents=parents)


def write_selection(shard: TokenShard, least: int, recipe: Recipe, folder: Path) -> None:
    num_chars = to_numpy(shard.documents(["num_chars"])["num_chars"])
    np.save(folder / "selected.npy", selected := num_chars >= least)
    counts = {"num_documents": int(selected.sum()), "num_chars": int(num_chars[selected].sum())}
    about = {"dataset": shard.manifest.dataset, "partition": shard.manifest.partition}
    made = Manifest(recipe=recipe, counts=counts, files=checksums(folder), **about)
    write_manifest(folder, made, run={})

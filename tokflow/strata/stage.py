"""The stage that gives each document of a token shard to a stratum."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tokflow.selection.config import columns_of
from tokflow.selection.stage import columns_over, decided_over, files_over, inputs_over
from tokflow.stage import Cost, DatasetConfig, Input, Making, Opened, Stage, WholeWriter, Writer
from tokflow.store.manifest import Recipe
from tokflow.store.store import StoredOutput
from tokflow.store.tables import read_table, to_numpy
from tokflow.strata.codes import STRATA_NAME, Strata, together, write_strata
from tokflow.strata.config import StrataConfig

if TYPE_CHECKING:  # it imports pyarrow.compute
    from tokflow.selection.expression import Expression

STRATA_VERSION = 1
"""Raised when the same input would give other bytes."""


class StrataStage(Stage):
    """The strata of the documents of each token shard."""

    name = "strata"
    config, needs = StrataConfig, "expressions"
    gives = "strata"
    cost = Cost(0.02)

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return what the expressions are over."""
        return inputs_over(dataset, _together(dataset))

    def recipe(self, making: Making) -> Recipe:
        """Return what decides the strata: the tokens and the expressions."""
        dataset = making.graph.dataset
        parents = {"tokens": making.input("tokens").fingerprint}
        return _recipe(dataset, decided_over(making, _together(dataset)), parents)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides of the strata of any shard."""
        return _recipe(dataset, {}, {})

    def writer(self, making: Making) -> Writer:
        """Return what asks the expressions of each document."""
        expression = _together(making.graph.dataset)
        files = files_over(making, expression)
        return WholeWriter(
            partial(
                write_strata,
                making.opened("tokens"),
                making.of(StrataConfig).expressions,
                columns_of(making.graph.dataset),
                attributes=columns_over(making, expression),
                quantiles=files.quantiles if files else {},
                recipe=making.recipe,
            )
        )

    def open(self, stored: StoredOutput, inputs: Opened) -> Strata:
        """Return the stratum of each document."""
        codes = to_numpy(read_table(stored.file(STRATA_NAME))["stratum"])
        return Strata(tuple(stored.manifest.details["strata"]), codes)

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        each = (f"    {name}: {of}" for name, of in _texts(dataset))
        return "The stratum of each document, the first that is true:\n\n" + "\n".join(each)


STRATA = StrataStage()


def _texts(dataset: DatasetConfig) -> list[list[str]]:
    """Return the name and the canonical expression of each stratum; their order counts."""
    return [[name, of.text] for name, of in dataset.of(StrataConfig).over(dataset).items()]


def _together(dataset: DatasetConfig) -> "Expression":
    return together(dataset.of(StrataConfig).over(dataset))


def _recipe(
    dataset: DatasetConfig, decided: Mapping[str, Any], parents: Mapping[str, str]
) -> Recipe:
    config = {"strata": _texts(dataset), **decided}
    return Recipe(stage=STRATA.name, version=STRATA_VERSION, config=config, parents=parents)

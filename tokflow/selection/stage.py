"""The stage that keeps the documents of a token shard that `select` says yes to."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokflow.attributes.config import DeclaredAttributes
from tokflow.attributes.stage import ATTRIBUTES
from tokflow.near_duplicates.stage import NEAR_DUPLICATES
from tokflow.selection.config import SelectConfig, columns_of
from tokflow.selection.left_out import (
    LEFT_OUT_NAME,
    Column,
    answers_of,
    documents_of,
    says_no_of,
    write_selection,
)
from tokflow.stage import (
    Cost,
    DatasetConfig,
    Input,
    Made,
    Making,
    Opened,
    Stage,
    WholeWriter,
    Writer,
)
from tokflow.store.manifest import Recipe
from tokflow.store.store import StoredOutput
from tokflow.store.tables import read_table, to_numpy
from tokflow.tokens.shard import TokenShard

if TYPE_CHECKING:  # they import pyarrow.compute
    from tokflow.near_duplicates.copies import NeedlessDocuments
    from tokflow.selection.expression import Expression

SELECTION_VERSION = 1
"""Raised when the same input would give other bytes."""


class SelectionStage(Stage):
    """The selection of the documents of each token shard."""

    name = "selection"
    gives = "selection"
    cost = Cost(0.02)

    def variants(self, dataset: DatasetConfig) -> Mapping[str, SelectConfig]:
        """Return the config, where it has an expression."""
        config = dataset.of(SelectConfig)
        return {"": config} if config.expression.strip() else {}

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return what the expression is over, and the pairs of copies."""
        expression = _expression(dataset)
        pairs = [Input(stage=NEAR_DUPLICATES.name)] * ("near_duplicate" in expression.copies)
        return [*inputs_over(dataset, expression), *pairs]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides a selection: the tokens and the expression."""
        expression = _expression(making.graph.dataset)
        pairs = _pairs_of(making, expression)
        return Recipe(
            stage=self.name,
            version=SELECTION_VERSION,
            config={"expression": expression.text, **decided_over(making, expression)},
            parents={
                **({NEAR_DUPLICATES.name: pairs.fingerprint} if pairs else {}),
                "tokens": making.input("tokens").fingerprint,
            },
        )

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides of the selection of any shard."""
        config = {"expression": _expression(dataset).text}
        return Recipe(stage=self.name, version=SELECTION_VERSION, config=config, parents={})

    def writer(self, making: Making) -> Writer:
        """Return what asks the expression of each document."""
        expression = _expression(making.graph.dataset)
        files = files_over(making, expression)
        return WholeWriter(
            partial(
                write_selection,
                making.opened("tokens"),
                making.of(SelectConfig).expression,
                columns_of(making.graph.dataset),
                attributes=columns_over(making, expression),
                quantiles=files.quantiles if files else {},
                copies=files.copies.get(making.key) if files else None,
                recipe=making.recipe,
            )
        )

    def open(self, stored: StoredOutput, inputs: Opened) -> npt.NDArray[np.bool_]:
        """Return whether each document is kept; (num_documents,)."""
        counts = stored.manifest.counts
        is_kept = np.ones(counts["num_documents"] + counts["num_unselected"], dtype=bool)
        is_kept[to_numpy(read_table(stored.file(LEFT_OUT_NAME), ["document"])["document"])] = False
        return is_kept

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        return (
            f"Which documents are kept:\n\n    {_expression(dataset).text}\n\nNo token is copied."
        )


SELECTION = SelectionStage()


@dataclass(frozen=True)
class AllFiles:
    """Inputs of all partitions together, for quantiles and copies among all files."""

    making: Making
    expression: "Expression"
    digest: str
    """Digest of the fingerprints of what all partitions have."""

    @cached_property
    def _inputs(self) -> dict[str, tuple[TokenShard, dict[str, Column]]]:
        """The token shard and the columns of attributes of each partition."""
        dataset = self.making.graph.dataset
        names = _attributes(dataset, self.expression)
        outputs = [self.making.opened_all(ATTRIBUTES.name, name) for name in names]
        shards = zip(self.making.inputs("tokens"), self.making.opened_all("tokens"), strict=True)
        return {
            key: (shard, _columns(dataset, dict(zip(names, of_shard, strict=True))))
            for (key, shard), *of_shard in zip(shards, *outputs, strict=True)
        }

    @cached_property
    def quantiles(self) -> dict[str, float | None]:
        """The quantiles over all files, by name; each table is read once."""
        asked = [of for of in self.expression.quantiles if of.scope == "dataset"]
        found: dict[str, list[npt.NDArray[np.float64]]] = {of.name: [] for of in asked}
        for shard, columns in self._inputs.values() if asked else ():
            documents = documents_of(shard, self.expression.names, columns)
            for of in asked:
                found[of.name].append(of.values_of(documents))
        return {of.name: of.of(np.concatenate(found[of.name])) for of in asked}

    @cached_property
    def copies(self) -> dict[str, "NeedlessDocuments"]:
        """The copies of each partition, among the documents that all rules keep."""
        if not self.expression.copies:
            return {}
        from tokflow.near_duplicates.copies import find_copies

        are_kept: list[npt.NDArray[np.bool_]] = []
        for shard, columns in self._inputs.values():
            _, answers = answers_of(shard, self.expression, columns, self.quantiles)
            are_kept.append(np.logical_not(says_no_of(answers, shard).any(axis=0)))
        shards = {key: shard for key, (shard, _) in self._inputs.items()}
        has_pairs = _pairs_of(self.making, self.expression) is not None
        pairs = self.making.opened(NEAR_DUPLICATES.name) if has_pairs else None
        return find_copies(shards, are_kept, pairs)


def inputs_over(dataset: DatasetConfig, expression: "Expression") -> list[Input]:
    """Return the tokens and the attributes that an expression is over: those of all partitions
    where all files decide what it says of one."""
    names = _attributes(dataset, expression)
    inputs = [Input(stage="tokens"), *(Input(stage=ATTRIBUTES.name, variant=of) for of in names)]
    if not _is_of_all(expression):
        return inputs
    of_all = {"why_all": ", of which quantile() is", "remedy": "compare with file_quantile()"}
    if expression.copies:
        of_all = {"why_all": ", among which copies are left out"}
    return [replace(of, reach="all", **of_all) for of in inputs]


def decided_over(making: Making, expression: "Expression") -> dict[str, Any]:
    """Return what decides the values of an expression beside the tokens of its file."""
    files, names = files_over(making, expression), _attributes(making.graph.dataset, expression)
    attributes = {name: making.input(ATTRIBUTES.name, name).fingerprint for name in names}
    of_all = {"all_files": files.digest} if files else {}
    return {**of_all, **({"attributes": attributes} if attributes else {})}


def files_over(making: Making, expression: "Expression") -> AllFiles | None:
    """Return what all files have in common; None where an expression is about each file by itself.

    Raises: MissingOutputError where the tokens of a partition are not there.
    """

    def of_all() -> AllFiles:
        names = _attributes(making.graph.dataset, expression)
        all_inputs = [
            making.inputs("tokens"),
            *(making.inputs(ATTRIBUTES.name, of) for of in names),
        ]
        of_files = (made.fingerprint for inputs in all_inputs for made in inputs.values())
        digest = hashlib.sha256("\n".join(of_files).encode()).hexdigest()
        return AllFiles(making, expression, digest)

    key = "all files", expression.text
    return making.graph.shared(key, of_all) if _is_of_all(expression) else None


def columns_over(making: Making, expression: "Expression") -> dict[str, Column]:
    """Return the columns of attributes that an expression may name, by that name."""
    dataset = making.graph.dataset
    names = _attributes(dataset, expression)
    return _columns(dataset, {name: making.opened(ATTRIBUTES.name, name) for name in names})


def _is_of_all(expression: "Expression") -> bool:
    """Return whether all files decide what is kept of each."""
    return bool(expression.copies) or any(of.scope == "dataset" for of in expression.quantiles)


def _pairs_of(making: Making, expression: "Expression") -> Made | None:
    """Return the pairs of alike texts; None where an expression does not ask for them."""
    is_asked = "near_duplicate" in expression.copies
    return making.input(NEAR_DUPLICATES.name) if is_asked else None


def _expression(dataset: DatasetConfig) -> "Expression":
    return dataset.of(SelectConfig).over(dataset)


def _attributes(dataset: DatasetConfig, expression: "Expression") -> list[str]:
    """Return the attributes of which an expression names a column."""
    columns = dataset.of(DeclaredAttributes).columns
    return sorted({columns[name][0] for name in expression.names if name in columns})


def _columns(dataset: DatasetConfig, outputs: Mapping[str, StoredOutput]) -> dict[str, Column]:
    columns = dataset.of(DeclaredAttributes).columns.items()
    return {as_: (outputs[name], of) for as_, (name, of) in columns if name in outputs}

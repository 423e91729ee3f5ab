"""Strata: the section `strata` of a dataset's YAML, the names of the parts that come of it, and the
stage that gives each document of a token shard to a stratum."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from tokflow.attributes.config import Kind
from tokflow.errors import ConfigError
from tokflow.selection import stage as selection
from tokflow.selection.left_out import Column, answers_of
from tokflow.stage import (
    Cost,
    DatasetConfig,
    Input,
    Making,
    Opened,
    Stage,
    Tables,
    TablesWriter,
    Writer,
)
from tokflow.store.config import Config, check_name, relocating
from tokflow.store.manifest import Manifest, Recipe
from tokflow.store.store import StoredOutput
from tokflow.store.tables import make_table, read_table, to_numpy
from tokflow.tokens.shard import TokenShard

if TYPE_CHECKING:  # it imports pyarrow.compute
    from tokflow.selection.expression import Expression

STRATA_VERSION = 1
"""Raised when the same input would give other bytes."""

STRATA_NAME = "strata.parquet"

STRATA_SCHEMA = pa.schema([pa.field("stratum", pa.int16(), nullable=False)])
"""One row per document, as in documents.parquet. stratum: its ordinal among the names in the
manifest, or NO_STRATUM."""

NO_STRATUM = -1

OF_STRATUM = ("num_documents", "num_tokens", "num_without_value")
"""Counts of each stratum: documents that it takes, their tokens, and those that no stratum before
it takes and of which it knows nothing, for a value is missing."""


class StrataConfig(Config):
    """Named subsets of the documents, which divide each part of the split."""

    section: ClassVar[str] = "strata"

    expressions: dict[str, str] = Field(default_factory=dict)
    """Name to expression, in the grammar of `select`. A document is of the first that is true of
    it; one of which none is true is in no part, and counted."""

    def over(self, dataset: DatasetConfig) -> "dict[str, Expression]":
        """Return the expression of each stratum over the columns of a dataset.

        Raises: ConfigError, whose place begins with the stratum, where one is wrong.
        """
        found = {}
        for name, text in self.expressions.items():
            with relocating(name):
                found[name] = selection.expression_over(dataset, text)
            if copies := found[name].copies:
                raise ConfigError(
                    where=name,
                    expected="what is known of a document by itself",
                    found=f"not {copies[0]}",
                    remedy="leave copies out by `select`",
                )
        return found

    def check(self) -> None:
        """Refuse names that cannot be those of parts."""
        for name in self.expressions:
            check_name(name, where="", becomes="a file", marks="-_")


def as_strata(strata: object) -> object:
    """Return the fields that expressions by name, or null, stand for; `true` is one that takes
    every document. Raises: ConfigError."""
    if isinstance(strata, StrataConfig) or (
        isinstance(strata, Mapping) and isinstance(strata.get("expressions"), Mapping)
    ):
        return strata
    if not isinstance(strata, Mapping | None):
        raise ConfigError(
            where="",
            expected="names with expressions, such as {hq: number(score) >= 3, rest: true}",
            found=repr(strata),
            remedy="name each stratum",
        )
    for name, by in (strata or {}).items():
        if not isinstance(by, str | bool):
            expected, found = "an expression, or true", repr(by)
            raise ConfigError(where=name, expected=expected, found=found, remedy="write it as text")
    return {"expressions": {name: str(by) for name, by in (strata or {}).items()}}


def divided(parts: Iterable[str], strata: Iterable[str]) -> tuple[str, ...]:
    """Return the names of parts that are divided by strata, `train.hq` and `train.rest` of train;
    the parts themselves where there are none."""
    strata = tuple(strata)
    return tuple(f"{part}.{of}" for part in parts for of in strata) if strata else tuple(parts)


def undivided(name: str) -> str:
    """Return the part that a stratum of it is of: `train` of `train.hq`, and of itself."""
    return name.partition(".")[0]


def parts_within(parts: Iterable[str], name: str) -> list[str]:
    """Return the parts that a name is of: one, or all strata of `train`."""
    return [part for part in parts if part == name or part.startswith(f"{name}.")]


@dataclass(frozen=True, slots=True)
class Strata:
    """The stratum of each document of a token shard."""

    names: tuple[str, ...]
    codes: npt.NDArray[np.int16]
    """(num_documents,): the ordinal of its name, or NO_STRATUM."""


class StrataStage(Stage):
    """The strata of the documents of each token shard."""

    name = "strata"
    config, needs = StrataConfig, "expressions"
    gives = "strata"
    cost = Cost(0.02)

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return what the expressions are over."""
        return selection.inputs_over(dataset, _together(dataset))

    def recipe(self, making: Making) -> Recipe:
        """Return what decides the strata: the tokens and the expressions."""
        dataset = making.graph.dataset
        tokens = making.input("tokens").fingerprint
        return _recipe(dataset, selection.decided_over(making, _together(dataset)), tokens=tokens)

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides of the strata of any shard."""
        return _recipe(dataset, {})

    def writer(self, making: Making) -> Writer:
        """Return what asks the expressions of each document."""
        dataset = making.graph.dataset
        expression = _together(dataset)
        files = selection.files_over(making, expression)
        asked = making.of(StrataConfig).expressions, selection.columns_of(dataset)
        of_all = selection.columns_over(making, expression), files.quantiles if files else {}
        return TablesWriter.of(making, strata_of, making.opened("tokens"), *asked, *of_all)

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


def _recipe(dataset: DatasetConfig, decided: Mapping[str, Any], **parents: str) -> Recipe:
    config = {"strata": _texts(dataset), **decided}
    return Recipe(stage=STRATA.name, version=STRATA_VERSION, config=config, parents=parents)


def together(expressions: Mapping[str, "Expression"]) -> "Expression":
    """Return one expression with a rule for each of several."""
    import pyarrow.compute as pc

    from tokflow.selection.expression import Expression, Rule

    def as_rule(of: Expression) -> Rule:
        rules = of.rules
        return Rule(of.text, lambda known: reduce(pc.and_kleene, [rule(known) for rule in rules]))

    several = expressions.values()
    return Expression(
        text=repr([(name, of.text) for name, of in expressions.items()]),
        rules=tuple(map(as_rule, several)),
        copies=(),
        names=tuple(sorted({name for of in several for name in of.names})),
        quantiles=tuple({each.name: each for of in several for each in of.quantiles}.values()),
    )


def strata_of(
    shard: TokenShard,
    expressions: Mapping[str, str],
    columns: Mapping[str, Kind],
    attributes: Mapping[str, Column],
    quantiles: Mapping[str, float | None],
) -> Tables:
    """Return the stratum of each document of a shard: the first whose expression is true.
    `quantiles`: those over all files."""
    from tokflow.selection.expression import parse

    asked = together({name: parse(text, columns) for name, text in expressions.items()})
    documents, answers = answers_of(shard, asked, attributes, quantiles)
    num_tokens = to_numpy(documents.columns["num_tokens"]).astype(np.int64)
    codes = np.full(len(num_tokens), NO_STRATUM, dtype=np.int16)
    counts = {"num_documents": len(codes)}
    for number, answer in enumerate(answers):
        is_left = codes == NO_STRATUM
        is_known = to_numpy(answer.is_valid()).astype(bool)
        is_in = is_left & to_numpy(answer.fill_null(False)).astype(bool)
        codes[is_in] = number
        found = is_in.sum(), num_tokens[is_in].sum(), (is_left & ~is_known).sum()
        counts |= {f"{number}.{of}": int(num) for of, num in zip(OF_STRATUM, found, strict=True)}
    counts["num_in_no_stratum"] = int(np.count_nonzero(codes == NO_STRATUM))
    table = make_table({"stratum": codes}, STRATA_SCHEMA)
    return {STRATA_NAME: table}, counts, {"strata": list(expressions)}


def strata_rows(manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """Return a row for each stratum of a dataset, the counts of its files added up."""
    names: list[str] = manifests[0].details["strata"] if manifests else []
    return [
        {"stratum": name}
        | {of: sum(each.counts[f"{number}.{of}"] for each in manifests) for of in OF_STRATUM}
        for number, name in enumerate(names)
    ]

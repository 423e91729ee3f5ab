"""The stage that keeps the documents of a token shard that `select` says yes to."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.attributes.config import DeclaredAttributes, Kind
from tokflow.attributes.stage import ATTRIBUTES, ATTRIBUTES_NAME
from tokflow.selection.config import SelectConfig, columns_of
from tokflow.stage import Cost, DatasetConfig, Input, Making, Opened, Stage, WholeWriter, Writer
from tokflow.store.manifest import Manifest, Recipe, checksums, write_manifest
from tokflow.store.store import StoredOutput
from tokflow.store.tables import TableWriter, make_table, read_table, to_arrow, to_numpy
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.shard_files import ROWS_PER_GROUP

if TYPE_CHECKING:  # it imports pyarrow.compute
    from tokflow.selection.expression import Expression, KnownValues, Quantile

SELECTION_VERSION = 1
"""Raised when the same input would give other bytes."""

LEFT_OUT_NAME = "left_out.parquet"

LEFT_OUT_SCHEMA = pa.schema(
    [
        pa.field("document", pa.int64(), nullable=False),
        pa.field("rule", pa.int16(), nullable=False),
    ]
)
"""One row per document that is left out. document: its index in documents.parquet; rule: ordinal of
the first rule that does not say yes."""

OF_RULE = ("num_left_out", "num_left_out_alone", "num_without_value")
"""Counts of each rule: documents that it does not say yes to, those that all other rules say yes
to, and those of which it knows nothing, for a value is missing."""

SUMS = ("num_chars", "num_tokens")

Column: TypeAlias = tuple[StoredOutput, str]
"""A column of the attributes of a shard: their output, and its name there."""


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
        """Return the tokens: those of all partitions where a quantile is over all files."""
        expression = _expression(dataset)
        named = [
            Input(stage=ATTRIBUTES.name, variant=of) for of in _attributes(dataset, expression)
        ]
        inputs = [Input(stage="tokens"), *named]
        if not any(of.scope == "dataset" for of in expression.quantiles):
            return inputs
        of_all = {"why_all": ", of which quantile() is", "remedy": "compare with file_quantile()"}
        return [replace(of, reach="all", **of_all) for of in inputs]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides a selection: the tokens and the expression."""
        files, dataset = _files_of(making), making.graph.dataset
        expression = _expression(dataset)
        return _recipe(
            expression,
            attributes={
                name: making.input(ATTRIBUTES.name, name).fingerprint
                for name in _attributes(dataset, expression)
            },
            all_files=files.digest if files else None,
            tokens=making.input("tokens").fingerprint,
        )

    def declared_recipe(self, dataset: DatasetConfig, variant: str) -> Recipe:
        """Return what the config decides of the selection of any shard."""
        return _recipe(_expression(dataset), attributes={}, all_files=None)

    def writer(self, making: Making) -> Writer:
        """Return what asks the expression of each document."""
        files = _files_of(making)
        return WholeWriter(
            partial(
                write_selection,
                making.opened("tokens"),
                making.of(SelectConfig).expression,
                columns_of(making.graph.dataset),
                attributes=columns_of_attributes(making),
                quantiles=files.quantiles if files else {},
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
class _AllFiles:
    """Inputs of all partitions together, for quantiles over all files."""

    making: Making
    expression: "Expression"
    digest: str
    """Digest of the fingerprints of what all partitions have."""

    @cached_property
    def quantiles(self) -> dict[str, float | None]:
        """The quantiles over all files, by name; each table is read once."""
        asked = [of for of in self.expression.quantiles if of.scope == "dataset"]
        found: dict[str, list[npt.NDArray[np.float64]]] = {of.name: [] for of in asked}
        dataset = self.making.graph.dataset
        names = _attributes(dataset, self.expression)
        outputs = [self.making.opened_all(ATTRIBUTES.name, name) for name in names]
        for shard, *of_shard in zip(self.making.opened_all("tokens"), *outputs, strict=True):
            columns = _columns(dataset, dict(zip(names, of_shard, strict=True)))
            documents = documents_of(shard, self.expression.names, columns)
            for of in asked:
                found[of.name].append(of.values_of(documents))
        return {of.name: of.of(np.concatenate(found[of.name])) for of in asked}


def _files_of(making: Making) -> _AllFiles | None:
    """Return what all files have in common; None where no quantile is over them.

    Raises: MissingOutputError where the tokens of a partition are not there.
    """
    expression = _expression(making.graph.dataset)

    def of_all() -> _AllFiles:
        names = _attributes(making.graph.dataset, expression)
        all_inputs = [
            making.inputs("tokens"),
            *(making.inputs(ATTRIBUTES.name, of) for of in names),
        ]
        of_files = (made.fingerprint for inputs in all_inputs for made in inputs.values())
        digest = hashlib.sha256("\n".join(of_files).encode()).hexdigest()
        return _AllFiles(making, expression, digest)

    is_of_all = any(of.scope == "dataset" for of in expression.quantiles)
    return making.graph.shared(SELECTION, of_all) if is_of_all else None


def _expression(dataset: DatasetConfig) -> "Expression":
    found = dataset.of(SelectConfig).over(dataset)
    if found is None:
        raise LookupError(f"{dataset.name} selects nothing")
    return found


def _attributes(dataset: DatasetConfig, expression: "Expression") -> list[str]:
    """Return the attributes of which an expression names a column."""
    columns = dataset.of(DeclaredAttributes).columns
    return sorted({columns[name][0] for name in expression.names if name in columns})


def columns_of_attributes(making: Making) -> dict[str, Column]:
    """Return the columns of attributes that the expression of an output may name, by that name."""
    dataset = making.graph.dataset
    names = _attributes(dataset, _expression(dataset))
    return _columns(dataset, {name: making.opened(ATTRIBUTES.name, name) for name in names})


def _columns(dataset: DatasetConfig, outputs: Mapping[str, StoredOutput]) -> dict[str, Column]:
    columns = dataset.of(DeclaredAttributes).columns.items()
    return {as_: (outputs[name], of) for as_, (name, of) in columns if name in outputs}


def _recipe(
    expression: "Expression",
    *,
    attributes: Mapping[str, str],
    all_files: str | None,
    **parents: str,
) -> Recipe:
    config = {
        "expression": expression.text,
        **({} if all_files is None else {"all_files": all_files}),
        **({"attributes": dict(attributes)} if attributes else {}),
    }
    return Recipe(stage="selection", version=SELECTION_VERSION, config=config, parents=parents)


def documents_of(
    shard: TokenShard, names: Sequence[str], attributes: Mapping[str, Column]
) -> "KnownValues":
    """Return the columns of a shard that an expression names, each one array."""
    import pyarrow.compute as pc

    from tokflow.selection.expression import KnownValues

    numbers = (*SUMS, "num_bytes")
    table = shard.documents(["row", *numbers])
    columns = {name: pc.cast(table[name].combine_chunks(), pa.float64()) for name in numbers}
    if "bytes_per_token" in names:
        num_tokens = columns["num_tokens"]
        some = pc.if_else(pc.equal(num_tokens, 0.0), None, num_tokens)
        columns["bytes_per_token"] = pc.divide(columns["num_bytes"], some)
    if "file" in names:
        columns["file"] = shard.origins.of_rows(to_numpy(table["row"]))[0]
    for name in names:
        if name in attributes:
            stored, column = attributes[name]
            of_output = read_table(stored.file(ATTRIBUTES_NAME), [column])
            columns[name] = of_output[column].combine_chunks()
    if kept := [name for name in names if name not in columns]:
        of_shard = shard.kept_columns()
        columns |= {name: of_shard[name].combine_chunks() for name in kept}
    return KnownValues(columns)


def _of_files(quantile: "Quantile", documents: "KnownValues", shard: TokenShard) -> pa.Array:
    """Return for each document the quantile over its raw file."""
    values = quantile.values(documents)
    is_known = to_numpy(values.is_valid())
    numbers = to_numpy(values.fill_null(0.0))
    file = shard.origins.numbers_of(to_numpy(shard.documents(["row"])["row"]))
    files = range(len(shard.origins.raw_files))
    of_each = [quantile.of(numbers[is_known & (file == number)]) for number in files]
    return pa.array(of_each, pa.float64()).take(to_arrow(file))


def write_selection(
    shard: TokenShard,
    expression: str,
    columns: Mapping[str, Kind],
    folder: Path,
    *,
    attributes: Mapping[str, Column],
    quantiles: Mapping[str, float | None],
    recipe: Recipe,
) -> None:
    """Write the selection of one shard into the empty `folder`, manifest last: what is left out and
    by which rule. `quantiles`: those over all files."""
    import pyarrow.compute as pc

    from tokflow.selection.expression import KnownValues, parse

    started = time.perf_counter()
    asked = parse(expression, columns)
    documents = documents_of(shard, asked.names, attributes)
    of_file = {of.name: of for of in asked.quantiles if of.name not in quantiles}
    own = {name: _of_files(of, documents, shard) for name, of in of_file.items()}
    documents = KnownValues(documents.columns, {**quantiles, **own})
    answers = [rule(documents) for rule in asked.rules]
    says_no = np.stack([~to_numpy(pc.fill_null(of, False)).astype(bool) for of in answers])
    num_rules_against, first = says_no.sum(axis=0), says_no.argmax(axis=0)
    left_out = np.flatnonzero(num_rules_against)
    with TableWriter(
        folder / LEFT_OUT_NAME, LEFT_OUT_SCHEMA, rows_per_group=ROWS_PER_GROUP
    ) as table:
        rows = {"document": left_out, "rule": first[left_out].astype(np.int16)}
        table.add(make_table(rows, LEFT_OUT_SCHEMA))
    counts = {"num_documents": len(first) - len(left_out), "num_unselected": len(left_out)}
    for name in SUMS:
        numbers = to_numpy(documents.columns[name]).astype(np.int64)
        of_left_out = int(numbers[left_out].sum())
        counts[name] = int(numbers.sum()) - of_left_out
        counts[f"{name}_unselected"] = of_left_out
    for number, (answer, no) in enumerate(zip(answers, says_no, strict=True)):
        alone = np.count_nonzero(no & (num_rules_against == 1))
        of_rule = int(np.count_nonzero(no)), int(alone), answer.null_count
        counts |= {f"{number}.{name}": num for name, num in zip(OF_RULE, of_rule, strict=True)}
    manifest = Manifest(
        recipe=recipe,
        dataset=shard.manifest.dataset,
        partition=shard.manifest.partition,
        counts=counts,
        details={"rules": [rule.text for rule in asked.rules]},
        files=checksums(folder, known={LEFT_OUT_NAME: table.entry()}),
    )
    write_manifest(folder, manifest, run={"seconds": round(time.perf_counter() - started, 3)})


def rule_against(stored: StoredOutput, document: int) -> str | None:
    """Return the first rule of a selection that does not say yes to a document; None where it is
    kept."""
    table = read_table(stored.file(LEFT_OUT_NAME))
    at = np.flatnonzero(to_numpy(table["document"]) == document)
    rules: list[str] = stored.manifest.details["rules"]
    return rules[to_numpy(table["rule"])[at[0]]] if len(at) else None


def rule_rows(manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """Return a row for each rule of the selections of a dataset, their counts added up."""
    rules: list[str] = manifests[0].details["rules"] if manifests else []
    return [
        {"rule": rule}
        | {name: sum(of.counts[f"{number}.{name}"] for of in manifests) for name in OF_RULE}
        for number, rule in enumerate(rules)
    ]

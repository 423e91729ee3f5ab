"""Which documents of a token shard a selection keeps, and why the others go."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.attributes.config import Kind
from tokflow.attributes.stage import ATTRIBUTES_NAME
from tokflow.stage import Tables
from tokflow.store.manifest import Manifest
from tokflow.store.store import StoredOutput
from tokflow.store.tables import make_table, one_array, read_table, to_arrow, to_numpy
from tokflow.tokens.shard import TokenShard

if TYPE_CHECKING:  # they import pyarrow.compute
    from tokflow.near_duplicates.pairs import NeedlessDocuments
    from tokflow.selection.expression import Expression, KnownValues, Quantile

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

COPIES_NAME = "copies.parquet"
COPIES_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.int64(), nullable=False) for name in ("document", "row")),
        pa.field("similarity", pa.float64(), nullable=False),
        pa.field("raw_file", pa.string(), nullable=False),
    ]
)
"""One row per document that goes for the sake of another, where `select` says `not duplicate` or
`not near_duplicate`. document: its index in documents.parquet; raw_file, row: the one that stays;
similarity: Jaccard of their n-grams, 1 of equal texts."""

EXCLUDED = "excluded: "
"""What a rule begins with that stands for the documents that lists exclude for one reason; the
reason follows."""

SUMS = ("num_chars", "num_tokens")

Column: TypeAlias = tuple[StoredOutput, str]
"""A column of the attributes of a shard: their output, and its name there."""


def documents_of(
    shard: TokenShard, names: Sequence[str], attributes: Mapping[str, Column]
) -> "KnownValues":
    """Return the columns of a shard that an expression names, each one array."""
    import pyarrow.compute as pc

    from tokflow.selection.expression import KnownValues

    numbers = (*SUMS, "num_bytes")
    table = shard.documents(["row", *numbers])
    columns = {name: pc.cast(one_array(table[name]), pa.float64()) for name in numbers}
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
            columns[name] = one_array(of_output[column])
    if kept := [name for name in names if name not in columns]:
        of_shard = shard.kept_columns()
        columns |= {name: one_array(of_shard[name]) for name in kept}
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


def answers_of(
    shard: TokenShard,
    expression: "Expression",
    attributes: Mapping[str, Column],
    quantiles: Mapping[str, float | None],
) -> "tuple[KnownValues, list[pa.BooleanArray]]":
    """Return the columns of a shard, and what each rule says of its documents. `quantiles`: those
    over all files."""
    from tokflow.selection.expression import KnownValues

    documents = documents_of(shard, expression.names, attributes)
    of_file = {of.name: of for of in expression.quantiles if of.name not in quantiles}
    own = {name: _of_files(of, documents, shard) for name, of in of_file.items()}
    documents = KnownValues(documents.columns, {**quantiles, **own})
    return documents, [rule(documents) for rule in expression.rules]


def says_no_of(answers: Sequence[pa.BooleanArray], shard: TokenShard) -> npt.NDArray[np.bool_]:
    """Return whether each rule does not say yes to each document, (num_rules, num_documents)."""
    import pyarrow.compute as pc

    found = np.zeros((len(answers), shard.manifest.counts["num_documents"]), dtype=bool)
    for own, answer in zip(found, answers, strict=True):
        own[:] = ~to_numpy(pc.fill_null(answer, False)).astype(bool)
    return found


def are_excluded(shard: TokenShard, excluded: pa.Table) -> dict[str, npt.NDArray[np.bool_]]:
    """Return by reason, sorted, whether each document of a shard is excluded for it;
    (num_documents,) each. `excluded`: what is of its raw files, in EXCLUDED_SCHEMA."""
    rows = to_numpy(shard.documents(["row"])["row"])
    named = zip(excluded["raw_file"].to_pylist(), excluded["row"].to_pylist(), strict=True)
    places = np.searchsorted(rows, [shard.origins.row_of(*of) for of in named])
    reasons, numbers = np.unique(excluded["reason"].to_pylist(), return_inverse=True)
    found = np.zeros((len(reasons), len(rows)), dtype=bool)
    found[numbers, places] = True
    return dict(zip(reasons.tolist(), found, strict=True))


def left_out_of(
    shard: TokenShard,
    expression: str,
    columns: Mapping[str, Kind],
    *,
    attributes: Mapping[str, Column],
    quantiles: Mapping[str, float | None],
    copies: "NeedlessDocuments | None",
    excluded: pa.Table | None,
) -> Tables:
    """Return what a selection leaves out of a shard, and by which rule. `quantiles`: those over all
    files; `copies`: documents that all rules keep, and that go for the sake of another; `excluded`:
    those that lists name, in EXCLUDED_SCHEMA."""
    from tokflow.selection.expression import ALL, parse

    asked = parse(expression, columns) if expression.strip() else ALL
    documents, answers = answers_of(shard, asked, attributes, quantiles)
    says_no = says_no_of(answers, shard)
    tables = {}
    if copies is not None:
        of_copies = np.zeros((len(asked.copies), says_no.shape[1]), dtype=bool)
        of_copies[np.where(copies.are_exact, 0, -1), copies.documents] = True
        says_no = np.concatenate([says_no, of_copies])
        tables[COPIES_NAME] = copies.table(COPIES_SCHEMA)
    by_reason = are_excluded(shard, excluded) if excluded else {}
    if by_reason:
        says_no = np.array([*by_reason.values(), *says_no])
    left_out = np.flatnonzero(says_no.any(axis=0))
    of_left_out = says_no[:, left_out]
    first = of_left_out.argmax(axis=0) if len(left_out) else left_out
    tables[LEFT_OUT_NAME] = make_table(
        {"document": left_out, "rule": first.astype(np.int16)}, LEFT_OUT_SCHEMA
    )
    rules = [*(f"{EXCLUDED}{of}" for of in by_reason), *(rule.text for rule in asked.rules)]
    rules += [f"not {of}" for of in asked.copies]
    num_unknown = [*[0] * len(by_reason), *(of.null_count for of in answers)]
    num_unknown += [0] * (len(rules) - len(num_unknown))
    return tables, _counts(documents, num_unknown, says_no), {"rules": rules}


def _counts(
    documents: "KnownValues", num_unknown: Sequence[int], says_no: npt.NDArray[np.bool_]
) -> dict[str, int]:
    """Return what is kept and what is left out, and the counts of each rule and of copies."""
    num_rules_against = says_no.sum(axis=0)
    left_out = np.flatnonzero(num_rules_against)
    num_documents = len(num_rules_against)
    counts = {"num_documents": num_documents - len(left_out), "num_unselected": len(left_out)}
    for name in SUMS:
        numbers = to_numpy(documents.columns[name]).astype(np.int64)
        of_left_out = int(numbers[left_out].sum())
        counts[name] = int(numbers.sum()) - of_left_out
        counts[f"{name}_unselected"] = of_left_out
    for number, (unknown, no) in enumerate(zip(num_unknown, says_no, strict=True)):
        alone = np.count_nonzero(no & (num_rules_against == 1))
        of_rule = int(np.count_nonzero(no)), int(alone), unknown
        counts |= {f"{number}.{name}": num for name, num in zip(OF_RULE, of_rule, strict=True)}
    return counts


def rule_against(stored: StoredOutput, document: int) -> str | None:
    """Return the first rule of a selection that does not say yes to a document, of a copy with the
    document that stays; None where it is kept."""
    table = read_table(stored.file(LEFT_OUT_NAME))
    at = np.flatnonzero(to_numpy(table["document"]) == document)
    if not len(at):
        return None
    rules: list[str] = stored.manifest.details["rules"]
    rule = rules[int(to_numpy(table["rule"])[at[0]])]
    if COPIES_NAME in stored.manifest.files:
        copies = read_table(stored.file(COPIES_NAME))
        for place in np.flatnonzero(to_numpy(copies["document"]) == document):
            of = {name: copies[name][int(place)].as_py() for name in copies.column_names}
            rule += f", {of['similarity']:.3f} like {of['raw_file']}, row {of['row']}"
    return rule


def rule_rows(manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """Return a row for each rule of the selections of a dataset, their counts added up; those of
    exclusions, which not every selection has, come first."""
    counts: dict[str, Counter[str]] = {}
    for of in manifests:
        for number, rule in enumerate(of.details["rules"]):
            own = {name: of.counts[f"{number}.{name}"] for name in OF_RULE}
            counts.setdefault(rule, Counter()).update(own)
    rules = sorted(of for of in counts if of.startswith(EXCLUDED))
    rules += [of for of in counts if of not in rules]
    return [{"rule": rule, **counts[rule]} for rule in rules]

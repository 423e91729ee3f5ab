"""strata.parquet: the stratum of each document of a token shard."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokflow.attributes.config import Kind
from tokflow.selection.left_out import Column, answers_of
from tokflow.store.manifest import Manifest, Recipe, checksums, write_manifest
from tokflow.store.tables import make_table, to_numpy, write_table
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.shard_files import ROWS_PER_GROUP

if TYPE_CHECKING:  # it imports pyarrow.compute
    from tokflow.selection.expression import Expression

STRATA_NAME = "strata.parquet"

STRATA_SCHEMA = pa.schema([pa.field("stratum", pa.int16(), nullable=False)])
"""One row per document, as in documents.parquet. stratum: its ordinal among the names in the
manifest, or NO_STRATUM."""

NO_STRATUM = -1

OF_STRATUM = ("num_documents", "num_tokens", "num_without_value")
"""Counts of each stratum: documents that it takes, their tokens, and those that no stratum before
it takes and of which it knows nothing, for a value is missing."""


@dataclass(frozen=True, slots=True)
class Strata:
    """The stratum of each document of a token shard."""

    names: tuple[str, ...]
    codes: npt.NDArray[np.int16]
    """(num_documents,): the ordinal of its name, or NO_STRATUM."""


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


def write_strata(
    shard: TokenShard,
    expressions: Mapping[str, str],
    columns: Mapping[str, Kind],
    folder: Path,
    *,
    attributes: Mapping[str, Column],
    quantiles: Mapping[str, float | None],
    recipe: Recipe,
) -> None:
    """Write the stratum of each document of a shard into the empty `folder`, manifest last: the
    first whose expression is true. `quantiles`: those over all files."""
    from tokflow.selection.expression import parse

    started = time.perf_counter()
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
    known = write_table(folder / STRATA_NAME, table, rows_per_group=ROWS_PER_GROUP)
    manifest = Manifest(
        recipe=recipe,
        dataset=shard.manifest.dataset,
        partition=shard.manifest.partition,
        counts=counts,
        details={"strata": list(expressions)},
        files=checksums(folder, known={STRATA_NAME: known}),
    )
    write_manifest(folder, manifest, run={"seconds": round(time.perf_counter() - started, 3)})


def strata_rows(manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """Return a row for each stratum of a dataset, the counts of its files added up."""
    names: list[str] = manifests[0].details["strata"] if manifests else []
    return [
        {"stratum": name}
        | {of: sum(each.counts[f"{number}.{of}"] for each in manifests) for of in OF_STRATUM}
        for number, name in enumerate(names)
    ]

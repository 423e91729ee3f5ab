"""The whereabouts of one document of a raw file: its parts, or why it is in none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.compute as pc

from tokflow.audit.dataframes import pieces_of
from tokflow.errors import ConfigError, nearest
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.output import Output
from tokflow.selection.config import SelectConfig
from tokflow.selection.stage import SELECTION, columns_of_attributes, documents_of, rule_against
from tokflow.store.tables import to_numpy
from tokflow.tokens.rejects import rejects_in
from tokflow.tokens.shard import TokenShard
from tokflow.tokens.shard_files import REJECTS_NAME


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentTrace:
    """The parts of one document of a raw file, or why it is in none."""

    raw_file: str
    row: int
    """Ordinal of the document in the raw file."""
    pieces: Sequence[Mapping[str, Any]] = ()
    """Its pieces: part, char_start, num_chars, num_tokens; one, unless the split cuts it."""
    why_not: str | None = None
    """Reason why it is in no part: what is wrong with it, or the rule of `select` that leaves it
    out; None where it is in a part."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values of the columns that `select` names."""


def trace_document(dataset: Dataset, raw_file: str, row: int) -> DocumentTrace:
    """Return what became of a document in the outputs that a dataset has now.

    Raises: ConfigError where the dataset has no such raw file, or that no such row;
    MissingOutputError where it is not built.
    """
    graph = graph_of(dataset)
    key = _partition_with(graph, raw_file)
    shard = graph.open_tokens(key)
    rows = to_numpy(shard.documents(["row"])["row"])
    found = np.flatnonzero(rows == shard.origins.row_of(raw_file, row))
    if not len(found):
        reason = _reject(shard, raw_file, row)
        return DocumentTrace(raw_file=raw_file, row=row, why_not=reason)
    pieces = pieces_of(graph.open_split(key))
    of_document = pc.and_(pc.equal(pieces["raw_file"], raw_file), pc.equal(pieces["row"], row))
    columns = ["part", "char_start", "num_chars", "num_tokens"]
    own = pieces.filter(of_document).select(columns).to_pylist()
    is_left_out = [piece["part"] for piece in own] == [None]
    why_not, values = None, {}
    if SELECTION in graph.stages and SELECTION.variants(dataset):
        selection, document = graph.output(SELECTION.name, key), int(found[0])
        rule = rule_against(selection.open(), document)
        why_not = rule and f"left out by select: {rule}"
        values = _values(selection, shard, document)
    return DocumentTrace(
        raw_file=raw_file,
        row=row,
        pieces=own,
        why_not=why_not or ("in no part of the split" if is_left_out else None),
        values=values,
    )


def _values(selection: Output, shard: TokenShard, document: int) -> dict[str, Any]:
    """Return the values of a document in the columns that `select` names."""
    expression = selection.of(SelectConfig).over(selection.graph.dataset)
    names = expression.names if expression else ()
    columns = documents_of(shard, names, columns_of_attributes(selection)).columns
    values = {name: columns[name][document].as_py() for name in names}
    return {
        name: int(of) if isinstance(of, float) and of.is_integer() else of
        for name, of in values.items()
    }


def _partition_with(graph: BuildGraph, raw_file: str) -> str:
    """Return the key of the partition that has a raw file."""
    for key, sources in graph.partitions.items():
        if any(source.key == raw_file for source in sources):
            return key
    keys = list(graph.sources)
    raise ConfigError(
        where="--file",
        expected=f"a raw file of {graph.dataset.name}, by its key",
        found=repr(raw_file),
        remedy=nearest(raw_file, keys) or "name one that `tokflow plan` and the report list",
    )


def _reject(shard: TokenShard, raw_file: str, row: int) -> str:
    """Return what is wrong with a bad document. Raises: ConfigError where it is none."""
    if shard.manifest.counts["num_rejects"]:
        for reject in rejects_in(shard.stored.file(REJECTS_NAME).read_bytes(), raw_file):
            if (reject["raw_file"], reject["row"]) == (raw_file, row):
                return f"rejected: {reject['reason']}"
    raise ConfigError(
        where="--row",
        expected=f"the row of a document in {raw_file}, from 0",
        found=f"{row:,}",
        remedy="name a smaller one; blank lines are rows without a document",
    )

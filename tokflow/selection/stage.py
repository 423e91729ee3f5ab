"""Section `select` of a dataset's YAML, the columns that its expression may name, and the stage
that keeps the documents of a token shard that it says yes to."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from tokflow.attributes.config import DeclaredAttributes, Kind
from tokflow.attributes.stage import ATTRIBUTES, raw_files_of
from tokflow.documents import DocumentsConfig
from tokflow.errors import ConfigError
from tokflow.exclusion.stage import EXCLUSION, excludes, exclusion_of
from tokflow.near_duplicates.stage import NEAR_DUPLICATES, NearDuplicatesConfig
from tokflow.selection import left_out
from tokflow.stage import (
    Cost,
    DatasetConfig,
    Input,
    Made,
    Making,
    Opened,
    Stage,
    TablesWriter,
    Writer,
)
from tokflow.store.config import Config
from tokflow.store.manifest import Recipe, joined_digest
from tokflow.store.store import StoredOutput
from tokflow.store.tables import read_table, to_numpy
from tokflow.tokens.shard import TokenShard

if TYPE_CHECKING:  # they import pyarrow.compute
    from tokflow.near_duplicates.pairs import NeedlessDocuments
    from tokflow.selection.expression import Expression

SELECTION_VERSION = 1
"""Raised when the same input would give other bytes."""


OWN_COLUMNS: Mapping[str, Kind] = {
    "num_tokens": "number",
    "num_chars": "number",
    "num_bytes": "number",
    "bytes_per_token": "number",
    "file": "text",
}
"""Columns that every dataset has: tokens with BOS and EOS, code points, bytes of UTF-8, and the key
of the raw file, its path below the raw folder."""


class SelectConfig(Config):
    """Documents to keep; the rest is in no part of the split and in no export."""

    section: ClassVar[str] = "select"

    expression: str = ""
    """A yes or no about each document; default: all are kept.

    Columns are num_tokens, num_chars, num_bytes, bytes_per_token, file and those of
    documents.keep_columns and of attributes. The grammar is Python's: comparisons, `and`, `or`,
    `not`, `in`, `is None`, arithmetic, `url.startswith('https')`, `number(stars) >= 10`,
    `num_tokens < quantile(0.99)`; `not duplicate` and `not near_duplicate`, which leave out all but
    one of equal texts, and of texts that are alike.
    """

    def over(self, dataset: DatasetConfig) -> "Expression":
        """Return the expression over the columns of a dataset.

        Raises: ConfigError where it is wrong.
        """
        from tokflow.selection.expression import ALL

        return expression_over(dataset, self.expression) if self.expression.strip() else ALL


def expression_over(
    dataset: DatasetConfig, text: str, own: Mapping[str, Kind] = OWN_COLUMNS
) -> "Expression":
    """Return an expression over the columns of a dataset; `own`: those that every one has. Raises:
    ConfigError where it is wrong."""
    found = _parsed(text, tuple({**columns_of(dataset), **own}.items()))
    kept = dataset.of(DocumentsConfig).keep_columns
    of_attributes = dataset.of(DeclaredAttributes)
    meanings = Counter([*own, *found.copies, *kept, *of_attributes.columns])
    if twice := [name for name in (*found.names, *found.copies) if meanings[name] > 1]:
        raise ConfigError(
            where="",
            expected="a column with one meaning",
            found=f"{twice[0]}, which more than one of these has: every dataset, "
            "documents.keep_columns, attributes",
            remedy="write `name.column` for that of an attribute, or rename the column",
        )
    if "near_duplicate" in found.copies:
        dataset.of(NearDuplicatesConfig).needed()
    return found


@lru_cache(256)
def _parsed(expression: str, columns: tuple[tuple[str, Kind], ...]) -> "Expression":
    from tokflow.selection.expression import parse

    return parse(expression, dict(columns))


def as_select(select: object) -> object:
    """Return the fields that an expression, or null, stands for. Raises: ConfigError."""
    if select is None or isinstance(select, str):
        return {"expression": select or ""}
    if isinstance(select, Mapping | SelectConfig):
        return select
    raise ConfigError(
        where="",
        expected="an expression, such as num_tokens >= 20",
        found=repr(select),
        remedy="write one expression; `and` joins several",
    )


def columns_of(dataset: DatasetConfig) -> dict[str, Kind]:
    """Return the columns that an expression may name, and their kinds."""
    kept: dict[str, Kind] = dict.fromkeys(dataset.of(DocumentsConfig).keep_columns, "text")
    return {**dataset.of(DeclaredAttributes).kinds(), **kept, **OWN_COLUMNS}


class SelectionStage(Stage):
    """The selection of the documents of each token shard: without those that are excluded."""

    name = "selection"
    gives = "selection"
    cost = Cost(0.02)

    def variants(self, dataset: DatasetConfig) -> Mapping[str, SelectConfig]:
        """Return the config, where it has an expression, or lists exclude documents."""
        config = dataset.of(SelectConfig)
        return {"": config} if config.expression.strip() or excludes(dataset) else {}

    def inputs(self, dataset: DatasetConfig, variant: str) -> Sequence[Input]:
        """Return what the expression is over, the pairs of copies, and what is excluded."""
        expression = _expression(dataset)
        pairs = [Input(stage=NEAR_DUPLICATES.name)] * ("near_duplicate" in expression.copies)
        excluded = [Input(stage=EXCLUSION.name)] * excludes(dataset)
        return [*inputs_over(dataset, expression), *pairs, *excluded]

    def recipe(self, making: Making) -> Recipe:
        """Return what decides a selection: the tokens, the expression, and which of the documents
        are excluded."""
        expression = _expression(making.graph.dataset)
        pairs, exclusion = _pairs_of(making, expression), exclusion_of(making)
        excluded = exclusion.digest(raw_files_of(making)) if exclusion else ""
        return Recipe(
            stage=self.name,
            version=SELECTION_VERSION,
            config={
                "expression": expression.text,
                **({"excluded": excluded} if excluded else {}),
                **decided_over(making, expression),
            },
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
        expression, columns = _expression(making.graph.dataset), columns_of(making.graph.dataset)
        files, exclusion = files_over(making, expression), exclusion_of(making)
        return TablesWriter.of(
            making,
            left_out.left_out_of,
            making.opened("tokens"),
            making.of(SelectConfig).expression,
            columns,
            attributes=columns_over(making, expression),
            quantiles=files.quantiles if files else {},
            copies=files.copies.get(making.key) if files else None,
            excluded=exclusion.of(raw_files_of(making)) if exclusion else None,
        )

    def open(self, stored: StoredOutput, inputs: Opened) -> npt.NDArray[np.bool_]:
        """Return whether each document is kept; (num_documents,)."""
        counts = stored.manifest.counts
        is_kept = np.ones(counts["num_documents"] + counts["num_unselected"], dtype=bool)
        gone = read_table(stored.file(left_out.LEFT_OUT_NAME), ["document"])
        is_kept[to_numpy(gone["document"])] = False
        return is_kept

    def keeps_all(self, making: Making) -> bool:
        """Return whether there is no expression, and no document of the partition is excluded."""
        exclusion, is_asked = exclusion_of(making), _expression(making.graph.dataset).text
        return exclusion is not None and not (is_asked or exclusion.digest(raw_files_of(making)))

    def about(self, dataset: DatasetConfig, variant: str) -> str:
        """Return the description of the asset."""
        text = _expression(dataset).text or "all but what `exclude` names"
        return f"Which documents are kept:\n\n    {text}\n\nNo token is copied."


SELECTION = SelectionStage()


def why_left_out(selection: Making, stored: StoredOutput, document: int) -> str | None:
    """Return why a selection, which is stored, leaves out a document, with the row of a list that
    names it, or the document that stays; None where it is kept."""
    rule = left_out.rule_against(stored, document)
    if rule is None or not rule.startswith(left_out.EXCLUDED):
        return rule and f"left out by select: {rule}"
    shard: TokenShard = selection.opened("tokens")
    rows = to_numpy(shard.documents(["row"])["row"])[document : document + 1]
    files, [row] = shard.origins.of_rows(rows)
    exclusion = exclusion_of(selection)
    return rule + (f" ({exclusion.named_by(files[0].as_py(), row)})" if exclusion else "")


@dataclass(frozen=True)
class AllFiles:
    """Inputs of all partitions together, for quantiles and copies among all files."""

    making: Making
    expression: "Expression"
    digest: str
    """Digest of the fingerprints of what all partitions have."""

    @cached_property
    def _inputs(self) -> dict[str, tuple[TokenShard, dict[str, left_out.Column]]]:
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
            documents = left_out.documents_of(shard, self.expression.names, columns)
            for of in asked:
                found[of.name].append(of.values_of(documents))
        return {of.name: of.of(np.concatenate(found[of.name])) for of in asked}

    @cached_property
    def copies(self) -> dict[str, "NeedlessDocuments"]:
        """The copies of each partition, among the documents that all rules keep."""
        if not self.expression.copies:
            return {}
        from tokflow.near_duplicates.pairs import find_copies

        are_kept: list[npt.NDArray[np.bool_]] = []
        exclusion = exclusion_of(self.making)
        for shard, columns in self._inputs.values():
            _, answers = left_out.answers_of(shard, self.expression, columns, self.quantiles)
            says_no = left_out.says_no_of(answers, shard).any(axis=0)
            if exclusion is not None:
                excluded = left_out.are_excluded(shard, exclusion.of(shard.origins.raw_files))
                says_no = np.logical_or.reduce([says_no, *excluded.values()])
            are_kept.append(np.logical_not(says_no))
        shards = {key: shard for key, (shard, _) in self._inputs.items()}
        has_pairs = _pairs_of(self.making, self.expression) is not None
        pairs = self.making.opened(NEAR_DUPLICATES.name) if has_pairs else None
        return find_copies(shards, are_kept, pairs)


def inputs_over(dataset: DatasetConfig, expression: "Expression") -> list[Input]:
    """Return the tokens and the attributes that an expression is over: those of all partitions
    where all files decide what it says of one."""
    names = _attributes(dataset, expression)
    inputs = [Input(stage="tokens")]
    inputs += [Input(stage=ATTRIBUTES.name, variant=of) for of in names]
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
        decides = [made.fingerprint for inputs in all_inputs for made in inputs.values()]
        exclusion = exclusion_of(making) if expression.copies else None
        decides += [exclusion.digest()] if exclusion else []
        return AllFiles(making, expression, joined_digest(decides))

    key = "all files", expression.text
    return making.graph.shared(key, of_all) if _is_of_all(expression) else None


def columns_over(making: Making, expression: "Expression") -> dict[str, left_out.Column]:
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


def _columns(
    dataset: DatasetConfig, outputs: Mapping[str, StoredOutput]
) -> dict[str, left_out.Column]:
    columns = dataset.of(DeclaredAttributes).columns.items()
    return {as_: (outputs[name], of) for as_, (name, of) in columns if name in outputs}

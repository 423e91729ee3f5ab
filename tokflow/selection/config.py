"""Section `select` of a dataset's YAML, and the columns that its expression may name."""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from tokflow.attributes.config import DeclaredAttributes, Kind
from tokflow.documents import DocumentsConfig
from tokflow.errors import ConfigError
from tokflow.near_duplicates.config import NearDuplicatesConfig
from tokflow.stage import DatasetConfig
from tokflow.store.config import Config

if TYPE_CHECKING:  # it imports pyarrow.compute
    from tokflow.selection.expression import Expression

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

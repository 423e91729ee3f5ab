"""Section `attributes` of a dataset's YAML."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from tokflow.documents import DocumentsConfig
from tokflow.errors import ConfigError, nearest
from tokflow.store.config import Config, Listed

Kind = Literal["number", "text", "bool"]

OWN_KEYS = ("row", "text_hash")
"""What documents have to align tables by, beside the columns that are kept."""


class AttributeConfig(Config):
    """Columns of tables that have one row per document."""

    files: Annotated[
        Listed[str], BeforeValidator(lambda files: (files,) if isinstance(files, str) else files)
    ]
    """The tables, parquet, jsonl or csv on this disk: paths or patterns from the folder that
    relative paths start from. With one table for each raw file, of its name (`scores/a.parquet` for
    `raw/a.jsonl.gz`), each raw file goes with its own; else all go with all."""
    key: str = "row"
    """What a row of a table is found by: `row`, the ordinal of the document in its raw file;
    `text_hash`, the xxh3-128 of its text as 32 hex digits; or a column of documents.keep_columns
    and of the tables."""
    columns: Annotated[dict[str, Kind], Field(min_length=1)]
    """The columns to take and what they are: `number`, `text` or `bool`."""

    def check(self) -> None:
        """Refuse the key among the columns."""
        if self.key in self.columns:
            raise ConfigError(
                where="columns",
                expected=f"other columns than the key {self.key!r}",
                found=", ".join(self.columns),
                remedy="leave it out; a column that is kept can be named by itself",
            )


@dataclass(frozen=True, slots=True)
class Attributes:
    """All attributes of a dataset."""

    named: Mapping[str, AttributeConfig]
    """Name to tables."""

    def check(self, documents: DocumentsConfig) -> None:
        """Refuse names that no expression can have, and keys that documents do not have.

        Raises: ConfigError.
        """
        known = [*OWN_KEYS, *documents.keep_columns]
        for name, of in self.named.items():
            if not name.isidentifier():
                raise ConfigError(
                    where=name,
                    expected="a name of letters, digits and _, for `name.column` in `select`",
                    found=repr(name),
                    remedy="rename it",
                )
            if of.key not in known:
                raise ConfigError(
                    where=f"{name}.key",
                    expected=f"one of {', '.join(known)}",
                    found=repr(of.key),
                    remedy=nearest(of.key, known) or "add it to documents.keep_columns",
                )

    @property
    def columns(self) -> dict[str, tuple[str, str]]:
        """Names that an expression may use to attribute and column: `scores.quality`, and
        `quality` where one attribute alone has it."""
        each = [(name, column) for name, of in self.named.items() for column in of.columns]
        plain = [column for _, column in each]
        return {f"{name}.{column}": (name, column) for name, column in each} | {
            column: (name, column) for name, column in each if plain.count(column) == 1
        }

    def kinds(self) -> dict[str, Kind]:
        """Return the names that an expression may use, with what they are."""
        return {as_: self.named[name].columns[of] for as_, (name, of) in self.columns.items()}

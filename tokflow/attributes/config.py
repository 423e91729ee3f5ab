"""Section `attributes` of a dataset's YAML."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from tokflow.documents import DocumentsConfig
from tokflow.documents.user_function import A_FUNCTION, FUNCTION_NAME
from tokflow.errors import ConfigError, nearest
from tokflow.raw.config import as_names
from tokflow.store.config import Config, Count

Kind = Literal["number", "text", "bool"]

MAX_INTEGER = 2**53
"""Numbers are float64, which from there on are not all whole numbers."""

OWN_KEYS = ("row", "text_hash")
"""What documents have to align tables by, beside the columns that are kept."""


class AttributeConfig(Config):
    """Columns with one value per document: of tables, or of a function."""

    columns: Annotated[dict[str, Kind], Field(min_length=1)]
    """The columns to take and what they are: `number`, `text` or `bool`."""
    files: Annotated[
        tuple[str, ...], BeforeValidator(as_names, json_schema_input_type=str | list[str])
    ] = ()
    """The tables, parquet, jsonl or csv on this disk: paths or patterns from the folder that
    relative paths start from. Where all have the names of raw files (`scores/a.parquet` for
    `raw/a.jsonl.gz`), each raw file goes with its own; else all go with all."""
    key: str = "row"
    """What a row of a table is found by: `row`, the ordinal of the document in its raw file;
    `text_hash`, the xxh3-128 of its text as 32 hex digits; or a column of documents.keep_columns
    and of the tables."""
    function: str | None = None
    """In place of tables, a function `package.module:function` that gets a list of texts and
    returns a mapping of columns to lists of the same length, None where nothing is known.

    It is found as `documents.transform` is, must be pure, and runs with your rights. Another
    tokenizer does not call it again."""
    batch: Count = 1000
    """With `function`: the texts that it gets at once, at most; the values do not depend on it."""
    function_version: int | str | None = None
    """With `function`: any text or number, to be changed with what else decides, as a model."""

    def check(self) -> None:
        """Refuse tables beside a function, and the key among the columns."""
        if bool(self.files) == bool(self.function):
            raise ConfigError(
                where="",
                expected="either `files` or a `function`",
                found="both" if self.files else "none",
                remedy="write one of them",
            )
        if self.function and not FUNCTION_NAME.fullmatch(self.function):
            raise ConfigError(
                where="function",
                expected=A_FUNCTION,
                found=repr(self.function),
                remedy="correct it",
            )
        if unnamed := [name for name in self.columns if not name.isidentifier()]:
            raise ConfigError(
                where="columns",
                expected="names of letters, digits and _, which `select` can write",
                found=repr(unnamed[0]),
                remedy="rename it in the tables",
            )
        if self.files and self.key in self.columns:
            raise ConfigError(
                where="columns",
                expected=f"other columns than the key {self.key!r}",
                found=", ".join(self.columns),
                remedy="leave it out; a column that is kept can be named by itself",
            )


@dataclass(frozen=True, slots=True)
class DeclaredAttributes:
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
            if of.files and of.key not in known:
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

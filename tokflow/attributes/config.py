"""Section `attributes` of a dataset's YAML."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

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


OF_EVALUATION: dict[str, Kind] = {
    "contamination": "number",
    "contaminated_by": "text",
    "contamination_run": "number",
}
"""Columns of documents beside evaluation texts: the share of one text's n-grams that a document
has, the largest of all texts; that text, `file, row`; the tokens of the longest run that both
have."""


class AttributeConfig(Config):
    """Columns with one value per document: of tables, of a function, or of evaluation texts."""

    columns: dict[str, Kind] = Field(default_factory=dict)
    """The columns to take and what they are: `number`, `text` or `bool`. With `evaluation` they are
    contamination, contaminated_by and contamination_run, and not written."""
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
    evaluation: Annotated[
        tuple[str, ...], BeforeValidator(as_names, json_schema_input_type=str | list[str])
    ] = ()
    """In place of tables, files of evaluation texts, of any format that raw files have: paths or
    patterns. `contamination < 0.2` keeps documents that have less than a fifth of the n-grams of
    any of them: of 13 tokens, of texts shorter than 30 tokens of 8."""
    text: str = "text"
    """With `evaluation`: the field or column that has the text."""
    batch: Count = 1000
    """With `function`: the texts that it gets at once, at most; the values do not depend on it."""
    function_version: int | str | None = None
    """With `function`: any text or number, to be changed with what else decides, as a model."""

    @model_validator(mode="before")
    @classmethod
    def _columns_of_evaluation(cls, fields: Any) -> Any:
        if isinstance(fields, Mapping) and fields.get("evaluation") and "columns" not in fields:
            return {**fields, "columns": OF_EVALUATION}
        return fields

    def check(self) -> None:
        """Refuse more than one source, and the key among the columns."""
        sources = [of for of in ("files", "function", "evaluation") if getattr(self, of)]
        if len(sources) != 1 or (self.evaluation and self.columns != OF_EVALUATION):
            raise ConfigError(
                where="",
                expected="one of `files`, `function` and `evaluation`, the last without `columns`",
                found=" and ".join(sources) or "none",
                remedy="write one of them",
            )
        if not self.columns:
            raise ConfigError(
                where="columns",
                expected="at least one column, with what it is",
                found="none",
                remedy="write it, such as {quality: number}",
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

    def explaining(self, names: Sequence[str]) -> list[str]:
        """Return names, and beside one of evaluation texts all columns of these."""
        of_texts = {
            name: [f"{name}.{column}" for column in OF_EVALUATION]
            for name, of in self.named.items()
            if of.evaluation
        }
        found = [*names]
        for name in names:
            if (of := self.columns.get(name, ("", ""))[0]) in of_texts:
                found += of_texts.pop(of)
        return found

    def kinds(self) -> dict[str, Kind]:
        """Return the names that an expression may use, with what they are."""
        return {as_: self.named[name].columns[of] for as_, (name, of) in self.columns.items()}

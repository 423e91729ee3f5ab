"""Section `exclude` of a dataset's YAML."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import BeforeValidator

from tokflow.attributes.config import OWN_KEYS
from tokflow.documents import DocumentsConfig
from tokflow.errors import ConfigError, nearest
from tokflow.raw.config import as_names
from tokflow.store.config import Config


class ExcludeConfig(Config):
    """Documents to take out, as lists name them; they are in no part of the split and in no
    export."""

    section: ClassVar[str] = "exclude"

    path: Annotated[
        tuple[str, ...], BeforeValidator(as_names, json_schema_input_type=str | list[str])
    ] = ()
    """The lists, parquet, jsonl or csv on this disk: paths or patterns. A column `reason`, where a
    list has one, is what its rows are counted by; else that is the path of the list."""
    by: str | None = None
    """What a row names documents by: `row`, columns `file` (the path below the raw folder) and
    `row` (from 0); `text_hash`, the xxh3-128 of the text as 32 hex digits; or a column of
    documents.keep_columns. Default: the one of these that a list has."""
    copies: bool = False
    """True: documents with the same text as one that a list names go, too."""

    def check_over(self, documents: DocumentsConfig) -> None:
        """Refuse a key that documents do not have. Raises: ConfigError."""
        known = [*OWN_KEYS, *documents.keep_columns]
        if self.by is not None and self.by not in known:
            raise ConfigError(
                where="exclude.by",
                expected=f"one of {', '.join(known)}",
                found=repr(self.by),
                remedy=nearest(self.by, known) or "add it to documents.keep_columns",
            )


def as_exclude(exclude: object) -> object:
    """Return the fields that paths of lists, or null, stand for."""
    return exclude if isinstance(exclude, Mapping | ExcludeConfig) else {"path": exclude or ()}

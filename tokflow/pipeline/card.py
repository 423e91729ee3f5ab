"""The section `card:` of a dataset: what only a person knows of it, for those who read of it."""

import datetime
import fnmatch
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from tokflow.errors import ConfigError
from tokflow.store.config import Config, Listed

Collected: TypeAlias = Literal[
    "public dataset", "licensed", "third party", "crawled", "user data", "synthetic", "other"
]
"""Ways to come by data, as the EU's template of training content tells them apart."""

Time: TypeAlias = Annotated[
    str,
    BeforeValidator(
        lambda value: str(value) if isinstance(value, int | datetime.date) else value,
        json_schema_input_type=str | int,
    ),
]
"""Text that YAML takes for a number or a date where it is not quoted."""


class SourceCard(Config):
    """Facts about the text of some raw files; nothing is guessed where a field is left out."""

    title: str | None = None
    """Name of the source, for people."""
    description: str | None = None
    """Content of the source, in a sentence or two."""
    url: str | None = None
    """Web page of the source."""
    owner: str | None = None
    """Person or organization that the data comes from."""
    license: str | None = None
    """Licence, by its SPDX identifier in lower case as the hub has it, such as cc-by-4.0."""
    language: Listed[str] = ()
    """Languages of the text, by their codes: `[en, de]`."""
    period: Time | None = None
    """Time in which the data was collected, such as 2019/2023."""
    collected: Collected | None = None
    """Way in which it was come by."""
    copyrighted: bool | None = None
    """Whether any of it is protected by copyright, trademark or patent."""
    personal_information: bool | None = None
    """Whether any of it is about persons who can be identified."""


class CardConfig(SourceCard):
    """Facts that people read beside the exports of a dataset; another card makes none again."""

    section: ClassVar[str] = "card"

    creators: Listed[str] = ()
    """Names of the people or organizations that made the dataset."""
    published: Time | None = None
    """Date of publication, as 2026-01-31."""
    version: Time | None = None
    """Version of the dataset, such as 1.0.0."""
    citation: str | None = None
    """BibTeX entry by which it is to be cited."""
    purpose: str | None = None
    """Use that the dataset is meant for."""
    sources: dict[str, SourceCard] = Field(default_factory=dict)
    """Sources within the dataset, by a pattern over keys of raw files, such as `wiki/*`; the first
    that matches counts, and a field left out is that of the dataset. In a mixture each source has
    the card of its own dataset."""

    def check(self) -> None:
        """Refuse a date that is none."""
        try:
            datetime.date.fromisoformat(self.published or "2026-01-31")
        except ValueError:
            raise ConfigError(
                where="published",
                expected="a date, such as 2026-01-31",
                found=repr(self.published),
                remedy="correct it",
            ) from None

    def source_of(self, key: str) -> str:
        """Return the pattern of the source that a raw file is of; empty where none matches."""
        return next((of for of in self.sources if fnmatch.fnmatchcase(key, of)), "")

    def card_of(self, pattern: str) -> SourceCard:
        """Return what is known of a source, with the fields of the dataset where it has none."""
        whole = {name: getattr(self, name) for name in SourceCard.model_fields}
        own = self.sources[pattern].model_dump(exclude_defaults=True) if pattern else {}
        return SourceCard(**{**whole, **({"title": pattern} if pattern else {}), **own})

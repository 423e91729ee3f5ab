"""Fields of a dataset that change nothing of what is built: names, tags and schedules for Dagster,
with times as cron strings and timezones, and the card, what only a person knows of it."""

import fnmatch
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise, takewhile
from typing import Annotated, ClassVar, Literal, TypeAlias
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, BeforeValidator, Field

from tokflow.errors import ConfigError, nearest
from tokflow.store.config import Config, Listed, check_name

_MAIL = r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}"
_TAG = r"[A-Za-z0-9_.-]"


def _refused(text: str, expected: str, remedy: str) -> ConfigError:
    """Return the error of a value; whoever reads the field adds where it is."""
    return ConfigError(where="", expected=expected, found=repr(text), remedy=remedy)


def _matching(form: str, expected: str, remedy: str = "rename it") -> AfterValidator:
    """Return the check that a text has a form; `{}` of the remedy is the text."""

    def check(text: str) -> str:
        if re.fullmatch(form, text):
            return text
        raise _refused(text, expected, remedy.format(text))

    return AfterValidator(check)


def dagster_name(name: str) -> str:
    """Return the dataset's name for jobs, sensors and groups, where Dagster allows no hyphen."""
    return name.replace("-", "_")


def key_part(name: str) -> str:
    """Check that a name can be part of an asset key; return it.

    Raises: ConfigError.
    """
    check_name(name, where="", becomes="a folder and an asset key", marks="-_")
    if "__" in dagster_name(name):
        expected = "no two of - and _ in a row, by which Dagster joins the parts of an asset key"
        raise _refused(name, expected, "rename it")
    return name


Name = Annotated[str, AfterValidator(key_part)]
Owners = Listed[
    Annotated[
        str, _matching(rf"(?s:team:.+)|{_MAIL}", "team:name or a mail address", "write team:{}")
    ]
]
OF_TAG = "letters, digits, `_`, `-` and `.`, 63 at most; one `/` in a key"
Tags = dict[
    Annotated[str, _matching(rf"({_TAG}{{1,63}}/)?{_TAG}{{1,63}}", OF_TAG)],
    Annotated[str, _matching(rf"{_TAG}{{0,63}}", OF_TAG)],
]
KeyPrefix = Annotated[
    Listed[Annotated[str, AfterValidator(key_part)]],
    BeforeValidator(
        lambda prefix: prefix.split("/") if isinstance(prefix, str) else prefix,
        json_schema_input_type=str | list[str],
    ),
]
PoolName = Annotated[str, _matching(r"\S+", "a name without blanks")]


SCAN_WORDS = ("minutely", "hourly")
"""Values of `scan` besides cron strings."""

_ITEM = r"(\*|(\d+|[a-z]{3})(-(\d+|[a-z]{3}))?)(/\d+)?"
_FIELD = re.compile(f"{_ITEM}(,{_ITEM})*", re.IGNORECASE)
"""Cron field as both Dagster and cronsim read it: no L and no #."""

_START = datetime(2000, 1, 1, tzinfo=UTC)
_YEARS = timedelta(days=8 * 366)
"""Days within which 29 February comes twice."""


def longest_pause(cron: str) -> timedelta:
    """Return the longest pause between two consecutive times, ignoring daylight saving."""
    minute, hour, *day = cron.split()
    days = [*_times(" ".join(["0 0", *day]), _YEARS)]
    of_day = [*_times(f"{minute} {hour} * * *", timedelta(days=1))]
    overnight = of_day[0] - of_day[-1]
    within = (after - before for before, after in pairwise(of_day))
    overnights = (after - before + overnight for before, after in pairwise(days))
    return max([*within, *overnights], default=_YEARS)


def _times(cron: str, within: timedelta) -> Iterator[datetime]:
    """Yield the times within a period that starts with the year 2000."""
    ticks = CronSim(cron, _START - timedelta(minutes=1))
    return takewhile(lambda time: time < _START + within, ticks)


def check_cron(text: str) -> str:
    """Check a cron string and return it: five fields, each `*`, a number, a name such as `mon`, a
    range `1-5`, a step `*/15` or `0-30/10`, or several with commas.

    Raises: ConfigError, also where that time never comes, as 30 February.
    """
    words, remedy = text.split(), ""
    odd = [word for word in words if not _FIELD.fullmatch(word)]
    if len(words) != 5:
        fault = f"{len(words)} fields" if words else "nothing"
        remedy = f"write the five fields of cron, not {fault}"
    elif odd:
        remedy = f"correct {odd[0]!r}"
    else:
        try:
            CronSim(text, _START)
        except CronSimError as error:
            remedy = f"correct the {str(error).removeprefix('Bad ')}"
    if remedy:
        expected = "minute, hour, day of the month, month and day of the week, as cron has them: "
        raise _refused(text, f"{expected}'0 3 * * *' is every night at three", remedy)
    return text


def is_due(scan: str, timezone: str, *, since: float, now: float) -> bool:
    """Return whether a time of `scan` lies between `since` and `now`, both in seconds since 1970;
    always true for `minutely`, and if the clock was set back."""
    if scan == "minutely" or since > now:
        return True
    zone = ZoneInfo(timezone)
    cron = "0 * * * *" if scan == "hourly" else scan
    return next(CronSim(cron, datetime.fromtimestamp(since, zone))).timestamp() <= now


def check_scan(text: str) -> str:
    """Check that the text is `minutely`, `hourly` or a cron string; return it.

    Raises: ConfigError.
    """
    if text in SCAN_WORDS:
        return text
    if " " in text.strip():
        return check_cron(text)
    expected = "minutely, hourly or a cron string such as '*/5 * * * *'"
    raise _refused(text, expected, nearest(text, SCAN_WORDS) or "name one of them")


def check_timezone(name: str) -> str:
    """Check that a name is in the IANA database; return it.

    Raises: ConfigError that suggests the nearest.
    """
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # none of that name; one that is no path; a folder
        expected = "the name of a timezone such as Europe/Berlin"
        remedy = nearest(name, sorted(available_timezones())) or "look it up in the IANA list"
        raise _refused(name, expected, remedy) from None
    return name


Cron = Annotated[str, AfterValidator(check_cron)]
Scan = Annotated[str, AfterValidator(check_scan)]
Timezone = Annotated[str, AfterValidator(check_timezone)]

Collected: TypeAlias = Literal[
    "public dataset", "licensed", "third party", "crawled", "user data", "synthetic", "other"
]
"""Ways to come by data, as the EU's template of training content tells them apart."""

Time: TypeAlias = Annotated[
    str,
    BeforeValidator(
        lambda value: str(value) if isinstance(value, int | date) else value,
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
            date.fromisoformat(self.published or "2026-01-31")
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

"""Times that a dataset's YAML names: cron strings and timezones, checked as they are read."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

import pydantic
from cronsim import CronSim, CronSimError

from tokflow.errors import ConfigError, nearest

SCAN_WORDS = ("minutely", "hourly")
"""What `scan` may be besides a cron string."""

_ITEM = r"(\*|(\d+|[a-z]{3})(-(\d+|[a-z]{3}))?)(/\d+)?"
_FIELD = re.compile(f"{_ITEM}(,{_ITEM})*", re.IGNORECASE)
"""What Dagster and cronsim understand alike: no L and no #."""

_START = datetime(2000, 1, 1, tzinfo=UTC)
_YEARS = timedelta(days=8 * 366)
"""A time on 29 February comes twice in so many days."""


def longest_pause(cron: str) -> timedelta:
    """Return the longest time between two times that follow each other; clocks that are set back
    and forth aside."""
    minute, hour, *day = cron.split()
    days = [*_times(" ".join(["0 0", *day]), _YEARS)]
    of_day = [*_times(f"{minute} {hour} * * *", timedelta(days=1))]
    overnight = of_day[0] - of_day[-1]
    within = (after - before for before, after in pairwise(of_day))
    overnights = (after - before + overnight for before, after in pairwise(days))
    return max([*within, *overnights], default=_YEARS)


def _times(cron: str, within: timedelta) -> Iterator[datetime]:
    """Yield the times within a while after the start of 2000, which is one of them if it fits."""
    ticks = CronSim(cron, _START - timedelta(minutes=1))
    return takewhile(lambda time: time < _START + within, ticks)


def check_cron(text: str) -> str:
    """Return the text, which names times as cron has them: five fields, each `*`, a number, a name
    such as `mon`, a range `1-5`, a step `*/15` or `0-30/10`, or several of them with commas.

    Raises: ConfigError, also where that time never comes, as 30 February.
    """
    words = text.split()
    if len(words) != 5:
        fault = f"{len(words)} fields" if words else "nothing"
        raise _bad_cron(text, f"write the five fields of cron, not {fault}")
    for word in words:
        if not _FIELD.fullmatch(word):
            raise _bad_cron(text, f"correct {word!r}")
    try:
        CronSim(text, _START)
    except CronSimError as error:
        raise _bad_cron(text, f"correct the {str(error).removeprefix('Bad ')}") from None
    return text


def is_due(scan: str, timezone: str, *, since: float, now: float) -> bool:
    """Return whether one of the times of `scan` has come after `since`, by `now`; always where it
    is `minutely`, as often as the sensor ticks, and where the clock was ahead. Both are seconds
    since 1970."""
    if scan == "minutely" or since > now:
        return True
    zone = ZoneInfo(timezone)
    cron = "0 * * * *" if scan == "hourly" else scan
    return next(CronSim(cron, datetime.fromtimestamp(since, zone))).timestamp() <= now


def _bad_cron(text: str, remedy: str) -> ConfigError:
    return ConfigError(
        where="",
        expected="minute, hour, day of the month, month and day of the week, as cron has them: "
        "'0 3 * * *' is every night at three",
        found=repr(text),
        remedy=remedy,
    )


def check_scan(text: str) -> str:
    """Return the text, which is `minutely`, `hourly` or a cron string.

    Raises: ConfigError.
    """
    if text in SCAN_WORDS:
        return text
    if " " in text.strip():
        return check_cron(text)
    raise ConfigError(
        where="",
        expected="minutely, hourly or a cron string such as '*/5 * * * *'",
        found=repr(text),
        remedy=nearest(text, SCAN_WORDS) or "name one of them",
    )


def check_timezone(name: str) -> str:
    """Return the name, which is one of the IANA database.

    Raises: ConfigError that suggests the nearest.
    """
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # none of that name; one that is no path; a folder
        raise ConfigError(
            where="",
            expected="the name of a timezone such as Europe/Berlin",
            found=repr(name),
            remedy=nearest(name, sorted(available_timezones())) or "look it up in the IANA list",
        ) from None
    return name


Cron = Annotated[str, pydantic.AfterValidator(check_cron)]
Scan = Annotated[str, pydantic.AfterValidator(check_scan)]
Timezone = Annotated[str, pydantic.AfterValidator(check_timezone)]

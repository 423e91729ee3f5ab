"""Times that a dataset's YAML names: cron strings and timezones, checked as they are read."""

import calendar
import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

import pydantic

from tokflow.errors import ConfigError, nearest

FIELDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of the month", 1, 31),
    ("month", 1, 12),
    ("day of the week", 0, 7),
)
"""The fields of a cron string with their least and greatest number; 0 and 7 are Sunday."""

NAMES = {
    "month": {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name},
    "day of the week": {
        name.lower(): (number + 1) % 7 for number, name in enumerate(calendar.day_abbr)
    },
}

SCAN_WORDS = ("minutely", "hourly")
"""What `scan` may be besides a cron string."""

WEEK_SECONDS = 7 * 24 * 3600

_MONDAY = date(2000, 1, 3)

_ITEM = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>\d+))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """Times that a cron string names, to the minute."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    """Of the month, from 1."""
    months: frozenset[int]
    weekdays: frozenset[int]
    """From 0, which is Sunday."""
    is_either: bool
    """True if a day of the month or a day of the week will do; else it must be both."""

    @classmethod
    def read(cls, text: str) -> "Times":
        """Return the times that five fields of cron name, as Dagster understands them.

        A field is `*`, a number, a name such as `mon`, a range `1-5`, a step `*/15` or `0-30/10`,
        or several of them with commas. A time that never comes, as 30 February, is refused.

        Raises: ConfigError.
        """
        words = text.split()
        if len(words) != len(FIELDS):
            fault = f"{len(words)} fields" if words else "nothing"
            raise _bad_cron(text, f"write the five fields of cron, not {fault}")
        numbers = [_numbers(text, word, *of) for word, of in zip(words, FIELDS, strict=True)]
        minutes, hours, days, months, weekdays = map(frozenset, numbers)
        weekdays = frozenset(day % 7 for day in weekdays)
        any_day = words[2] == "*" or (len(days) == 31 and "*" in words[4])
        any_weekday = words[4] == "*" or (len(weekdays) == 7 and "*" in words[2])
        last_day = max(29 if month == 2 else monthrange(2001, month)[1] for month in months)
        if any_weekday and min(days) > last_day:
            raise _bad_cron(text, f"name a day that these months have: {last_day} at most")
        return cls(
            minutes=minutes,
            hours=hours,
            days=days,
            months=months,
            weekdays=weekdays,
            is_either=not any_day and not any_weekday,
        )

    def include(self, moment: datetime) -> bool:
        """Return whether the minute of `moment`, a time of the right timezone, is one of them."""
        is_time = moment.minute in self.minutes and moment.hour in self.hours
        return is_time and self._include_day(moment)

    def _include_day(self, day: date) -> bool:
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        is_day = of_month or of_week if self.is_either else of_month and of_week
        return is_day and day.month in self.months

    @property
    def longest_pause(self) -> timedelta:
        """The longest time between two of them that follow each other, in eight years; clocks
        that are set back and forth aside."""
        of_day = sorted(timedelta(hours=h, minutes=m) for h in self.hours for m in self.minutes)
        days = [
            day
            for day in (_MONDAY + timedelta(n) for n in range(8 * 366))
            if self._include_day(day)
        ]
        pauses = [after - before for before, after in pairwise(of_day)]
        overnight = of_day[0] - of_day[-1]
        return max([*pauses, *(after - before + overnight for before, after in pairwise(days))])


def check_cron(text: str) -> str:
    """Return the text, which names times as `Times.read` has them.

    Raises: ConfigError.
    """
    Times.read(text)
    return text


def is_due(scan: str, timezone: str, *, since: float, now: float) -> bool:
    """Return whether one of the times of `scan` has come after `since`, by `now`; always where it
    is `minutely`, as often as the sensor ticks, and after a week. Both are seconds since 1970."""
    if scan == "minutely" or now - since > WEEK_SECONDS:
        return True
    times, zone = Times.read("0 * * * *" if scan == "hourly" else scan), ZoneInfo(timezone)
    minutes = range(int(since // 60) + 1, int(now // 60) + 1)
    return any(times.include(datetime.fromtimestamp(60 * minute, zone)) for minute in minutes)


def _numbers(text: str, field: str, name: str, least: int, greatest: int) -> set[int]:
    """Return the numbers that one field stands for."""
    numbers: set[int] = set()
    for item in field.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise _bad_cron(text, f"correct the {name}, {item!r}")
        first, last = least, greatest
        if match["first"] is not None:
            is_range = match["last"] is not None
            first = _number(match["first"], name)
            last = _number(match["last"], name) if is_range else first
            # Dagster takes 5/15 for 5-59/15, and 0-0 for all days of the week.
            is_odd = first == last if is_range else match["step"] is not None
            if is_odd or not least <= first <= last <= greatest:
                raise _bad_cron(text, f"correct the {name}, {item!r}: {least} to {greatest}")
        step = int(match["step"] or 1)
        if not 1 <= step <= max(last, 1):  # */90 would be every hour
            raise _bad_cron(text, f"correct the {name}, {item!r}: a step is 1 to {last}")
        numbers.update(range(first, last + 1, step))
    return numbers


def _number(word: str, name: str) -> int:
    """Return a number, or that of a name; -1, which no field has, for another word."""
    return int(word) if word.isdecimal() else NAMES.get(name, {}).get(word.lower(), -1)


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

"""Times that a dataset's YAML names: cron strings and timezones, checked as they are read."""

import calendar
import re
from typing import Annotated

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

SCAN_WORDS = {"minutely": "* * * * *", "hourly": "0 * * * *"}
"""What `scan` may be besides a cron string, and the cron string that it stands for."""

_ITEM = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>\d+))?")


def check_cron(text: str) -> str:
    """Return the text, which is five fields of cron that Dagster understands.

    A field is `*`, a number, a name such as `mon`, a range `1-5`, a step `*/15` or `0-30/10`, or
    several of them with commas. A time that never comes, such as 30 February, is refused.

    Raises: ConfigError.
    """
    fields = text.split()
    if len(fields) != len(FIELDS):
        fault = f"{len(fields)} fields" if fields else "nothing"
        raise _bad_cron(text, f"write the five fields of cron, not {fault}")
    numbers = [_numbers(text, field, *of) for field, of in zip(fields, FIELDS, strict=True)]
    _, _, days, months, _ = numbers
    last_day = max(29 if month == 2 else calendar.monthrange(2001, month)[1] for month in months)
    if fields[4] == "*" and min(days) > last_day:
        raise _bad_cron(text, f"name a day that these months have: {last_day} at most")
    return text


def _numbers(text: str, field: str, name: str, least: int, greatest: int) -> set[int]:
    """Return the numbers that one field stands for."""
    numbers: set[int] = set()
    for item in field.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise _bad_cron(text, f"correct the {name}, {item!r}")
        first, last = least, greatest
        if match["first"] is not None:
            first = _number(match["first"], name)
            last = first if match["last"] is None else _number(match["last"], name)
            is_step_of_one = match["step"] is not None and match["last"] is None
            if is_step_of_one or not least <= first <= last <= greatest:
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
        remedy=nearest(text, list(SCAN_WORDS)) or "name one of them",
    )


def check_timezone(name: str) -> str:
    """Return the name, which is one of the IANA database.

    Raises: ConfigError that suggests the nearest.
    """
    from zoneinfo import ZoneInfo, available_timezones

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

"""Times in a dataset's YAML."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokflow.errors import ConfigError
from tokflow.pipeline.fields import check_cron, is_due, longest_pause


@dg.job
def nothing() -> None:
    pass


def is_known_to_dagster(cron: str) -> bool:
    try:
        dg.ScheduleDefinition(name="s", job=nothing, cron_schedule=cron)
    except dg.DagsterInvalidDefinitionError:
        return False
    return True


@pytest.mark.parametrize(
    ("cron", "remedy"),
    [
        ("", "not nothing"),
        ("0 3 * *", "not 4 fields"),
        ("0 0 3 * * *", "not 6 fields"),
        ("60 3 * * *", "correct the minute"),
        ("0 25 * * *", "correct the hour"),
        ("0 3 0 * *", "correct the day-of-month"),
        ("0 3 * june *", "correct 'june'"),
        ("0 3 * jum *", "correct the month"),
        ("0 3 * * fri-mon", "correct the day-of-week"),
        ("*/0 3 * * *", "correct the minute"),
        ("0 3 1, * *", "correct '1,'"),
        ("0 3 L * *", "correct 'L'"),
        ("0 3 * * 1#2", "correct '1#2'"),
        ("0 3 30 2 *", "correct the day-of-month"),
        ("0 3 31 4,6 *", "correct the day-of-month"),
    ],
)
def test_another_is_refused_with_what_is_wrong(cron: str, remedy: str):
    with pytest.raises(ConfigError) as raised:
        check_cron(cron)

    assert remedy in raised.value.remedy


@st.composite
def fields(draw: st.DrawFn, least: int, greatest: int) -> str:
    number = st.integers(least, greatest)
    first, last = sorted(draw(st.sets(number, min_size=2, max_size=2)))
    step = draw(st.integers(1, 70))
    every, some = f"*/{step}", f"{first}-{last}/{step}"
    return draw(st.sampled_from(["*", str(first), f"{first}-{last}", every, f"{first},{some}"]))


RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


@pytest.mark.filterwarnings("ignore:Found a cron schedule with an interval")  # 0-1/2, say
@settings(max_examples=50, deadline=None)
@given(st.tuples(*(fields(least, greatest) for least, greatest in RANGES)).map(" ".join))
def test_what_is_taken_is_known_to_dagster(cron: str):
    try:
        check_cron(cron)
    except ConfigError as error:
        assert "day-of-month" in error.remedy  # noqa: PT017 (29 February may come)
    else:
        assert is_known_to_dagster(cron)


@pytest.mark.parametrize(
    ("cron", "pause"),
    [
        ("0 3 * * *", timedelta(days=1)),
        ("0 3 * * mon-fri", timedelta(days=3)),
        ("*/15 8-17 * * *", timedelta(hours=14, minutes=15)),
        ("0 0 1 * *", timedelta(days=31)),
        ("0 0 29 2 *", timedelta(days=4 * 365 + 1)),
        ("* * * * *", timedelta(minutes=1)),
        ("0 3 29 2 */5", timedelta(days=8 * 366)),
    ],
)
def test_the_longest_pause_between_two_times(cron: str, pause: timedelta):
    assert longest_pause(cron) == pause


def test_a_scan_is_due_once_for_each_of_its_times():
    three = datetime(2026, 7, 1, 3, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()

    def due(scan: str, since: float, now: float, timezone: str = "Europe/Berlin") -> bool:
        return is_due(scan, timezone, since=three + since, now=three + now)

    assert due("0 3 * * *", since=-10, now=0)
    assert due("0 3 * * *", since=-10, now=50)
    assert not due("0 3 * * *", since=0, now=60)
    assert not due("0 3 * * *", since=-10, now=50, timezone="UTC")
    assert due("hourly", since=-10, now=50)
    assert not due("hourly", since=50, now=3000)
    assert due("minutely", since=-10, now=50)
    assert is_due("0 3 * * *", "UTC", since=0.0, now=three)
    assert due("0 3 * * *", since=86_400, now=60)

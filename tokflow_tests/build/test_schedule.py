"""Times in a dataset's YAML."""

from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokflow.build.plan import make_plan
from tokflow.build.schedule import FIELDS, Times, check_cron, check_scan, check_timezone, is_due
from tokflow.errors import ConfigError
from tokflow_tests.tiny import build, declare


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
    "cron",
    ["0 3 * * *", "*/15 0-6,22-23 1,15 jan-mar MON-fri", "0 0 29 2 *", "0-30/10 * 31 4 7"],
)
def test_a_cron_string_is_taken(cron: str):
    assert check_cron(cron) == cron
    assert is_known_to_dagster(cron)


@pytest.mark.parametrize(
    ("cron", "remedy"),
    [
        ("", "not nothing"),
        ("0 3 * *", "not 4 fields"),
        ("0 0 3 * * *", "not 6 fields"),
        ("60 3 * * *", "correct the minute, '60': 0 to 59"),
        ("0 25 * * *", "correct the hour, '25': 0 to 23"),
        ("0 3 0 * *", "correct the day of the month, '0': 1 to 31"),
        ("0 3 * june *", "correct the month, 'june': 1 to 12"),
        ("0 3 * * fri-mon", "correct the day of the week, 'fri-mon': 0 to 7"),
        ("*/0 3 * * *", "correct the minute, '*/0': a step is 1 to 59"),
        ("*/90 3 * * *", "correct the minute, '*/90': a step is 1 to 59"),
        ("0 3 * * 0-0", "correct the day of the week, '0-0'"),
        ("5/15 3 * * *", "correct the minute, '5/15'"),
        ("0 3 1, * *", "correct the day of the month, ''"),
        ("0 3 30 2 *", "name a day that these months have: 29 at most"),
        ("0 3 31 4,6 *", "name a day that these months have: 30 at most"),
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


@settings(max_examples=200, deadline=None)
@given(st.tuples(*(fields(least, greatest) for _, least, greatest in FIELDS)).map(" ".join))
def test_what_is_taken_is_known_to_dagster(cron: str):
    try:
        check_cron(cron)
    except ConfigError as error:
        assert "these months" in error.remedy or "a step" in error.remedy  # noqa: PT017
    else:
        assert is_known_to_dagster(cron)


@settings(max_examples=200, deadline=None)
@given(
    st.tuples(*(fields(least, greatest) for _, least, greatest in FIELDS)).map(" ".join),
    st.datetimes(datetime(2023, 1, 1), datetime(2025, 1, 1)),
)
def test_times_are_those_that_dagster_finds(cron: str, start: datetime):
    try:
        times = Times.read(cron)
    except ConfigError:
        return
    start = start.replace(second=0, microsecond=0)
    ticks = dg.TimeWindowPartitionsDefinition(cron_schedule=cron, start=start, fmt="%Y-%m-%d")

    window = ticks.get_first_partition_window()
    first = window.start.replace(tzinfo=None) if window else datetime(2030, 1, 1)

    few_minutes = range(int(min(first - start, timedelta(days=2)).total_seconds() // 60))
    assert not any(times.include(start + timedelta(minutes=n)) for n in few_minutes)
    assert window is None or times.include(first)


@pytest.mark.parametrize(
    ("cron", "pause"),
    [
        ("0 3 * * *", timedelta(days=1)),
        ("0 3 * * mon-fri", timedelta(days=3)),
        ("*/15 8-17 * * *", timedelta(hours=14, minutes=15)),
        ("0 0 1 * *", timedelta(days=31)),
        ("0 0 29 2 *", timedelta(days=4 * 365 + 1)),
        ("* * * * *", timedelta(minutes=1)),
    ],
)
def test_the_longest_pause_between_two_times(cron: str, pause: timedelta):
    assert Times.read(cron).longest_pause == pause


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


def test_a_scan_is_a_word_or_a_cron_string():
    assert [check_scan(text) for text in ("minutely", "hourly", "*/5 * * * *")]
    with pytest.raises(ConfigError, match="did you mean 'hourly'"):
        check_scan("hourli")


@pytest.mark.parametrize("name", ["Europe/Berlni", "../etc/passwd", "Europe", ""])
def test_a_timezone_that_is_none_is_refused(name: str):
    with pytest.raises(ConfigError, match="timezone such as Europe/Berlin"):
        check_timezone(name)


def test_a_mistyped_timezone_is_suggested():
    with pytest.raises(ConfigError, match="did you mean 'Europe/Berlin'"):
        check_timezone("Europe/Berlni")


def test_when_a_dataset_is_built_decides_nothing_of_it(tmp_path: Path):
    build(declare(tmp_path, {"a.jsonl": ["w1 w2", "w3"]}, exports=["bin"]))
    times = {"automation": True, "schedule": "0 3 * * *", "scan": "hourly"}

    dataset = declare(tmp_path, exports=["bin"], timezone="Europe/Berlin", **times)

    assert make_plan(dataset).is_up_to_date

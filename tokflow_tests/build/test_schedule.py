"""Times in a dataset's YAML."""

from pathlib import Path

import dagster as dg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokflow.build.plan import make_plan
from tokflow.build.schedule import FIELDS, check_cron, check_scan, check_timezone
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
    first, last = sorted((draw(number), draw(number)))
    step = draw(st.integers(1, 70))
    every, some = f"*/{step}", f"{first}-{last}/{step}"
    return draw(st.sampled_from(["*", str(first), f"{first}-{last}", every, f"{first},{some}"]))


@pytest.mark.filterwarnings("ignore:Found a cron schedule")  # Dagster's, wrongly, of 0-0
@settings(max_examples=200, deadline=None)
@given(st.tuples(*(fields(least, greatest) for _, least, greatest in FIELDS)).map(" ".join))
def test_what_is_taken_is_known_to_dagster(cron: str):
    try:
        check_cron(cron)
    except ConfigError as error:
        assert "these months" in error.remedy or "a step" in error.remedy  # noqa: PT017
    else:
        assert is_known_to_dagster(cron)


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

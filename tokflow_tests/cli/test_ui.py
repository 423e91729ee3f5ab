from pathlib import Path

import pytest

import tokflow
from tokflow_tests.cli.commands import json_of, run


def test_the_web_ui_is_for_this_machine_alone():
    document = json_of("ui", "--port", "3001")

    assert document["command"][1:8] == ["-m", "dagster", "dev", "-h", "127.0.0.1", "-p", "3001"]
    assert Path(document["folder"]) == Path(tokflow.__file__).parent.parent


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_the_web_ui_is_not_exposed_by_mistake(host: str):
    result = run("ui", "--host", host)

    assert result.exit_code == 2
    assert "since the web UI has no login" in result.stderr


def test_the_web_ui_is_exposed_by_name():
    command = json_of("ui", "--host", "0.0.0.0", "--expose-without-login")["command"]

    assert command[5] == "0.0.0.0"

import json
import os
import subprocess
import sys
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


def test_the_web_ui_has_the_environment_of_the_user_and_not_that_of_a_command():
    code = (
        "import json, os\n"
        "from tokflow.cli import main\n"
        "os.execve = lambda path, command, environment: print(json.dumps(environment))\n"
        "main()\n"
    )
    spared = {"OPENBLAS_NUM_THREADS", "PYDANTIC_DISABLE_PLUGINS"}
    asked = {name: os.environ[name] for name in os.environ if name not in spared}
    asked["OPENBLAS_NUM_THREADS"] = "1"

    done = subprocess.run(
        [sys.executable, "-c", code, "ui"], env=asked, capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout) == asked | {"DAGSTER_DISABLE_TELEMETRY": "1"}

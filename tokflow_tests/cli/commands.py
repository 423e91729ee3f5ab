"""Commands of the command line, run in this process."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from tokflow.cli.app import app


def run(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: str | Path | int) -> str:
    """Return what a command says on stderr that is wrong usage."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return result.stderr


def json_of(*arguments: str | Path) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return json.loads(result.stdout)

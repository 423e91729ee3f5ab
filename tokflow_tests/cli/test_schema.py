import json
from pathlib import Path

import pytest

from tokflow_tests.cli.commands import json_of, run


def test_the_schema_that_is_written_is_the_one_that_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)

    written = run("schema", "-o", "tokflow.json")

    assert "  # yaml-language-server: $schema=tokflow.json\n" in written.stdout
    assert json.loads(Path("tokflow.json").read_text()) == json_of("schema")


def test_an_older_schema_is_replaced_and_nothing_else(tmp_path: Path):
    own, other = tmp_path / "tokflow.json", tmp_path / "dataset.yaml"
    own.write_text('{"title": "tokflow datasets"}')
    other.write_text("name: mine\n")

    replaced = json_of("schema", "-o", own)
    refused = [run("schema", "-o", path) for path in (other, tmp_path)]

    assert replaced["num_bytes"] == own.stat().st_size > 1000
    assert [result.exit_code for result in refused] == [2, 2]
    assert "expected a path where nothing is yet" in refused[0].stderr
    assert other.read_text() == "name: mine\n"

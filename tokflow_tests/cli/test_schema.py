import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from tokflow_tests.cli.commands import json_of, run
from tokflow_tests.tiny import write_yaml


def test_the_schema_that_is_written_is_the_one_that_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)

    written = run("schema", "-o", "tokflow.json")

    assert "  # yaml-language-server: $schema=tokflow.json\n" in written.stdout
    found = json.loads(Path("tokflow.json").read_text())
    assert found == json.loads(run("schema").stdout) == json_of("schema")
    jsonschema.validate(yaml.safe_load(write_yaml(tmp_path).read_text()), found)


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

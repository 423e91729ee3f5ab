import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tokflow.cli.app import app
from tokflow.pipeline.yaml_file import _standard_input
from tokflow_tests.cli.commands import refused, run
from tokflow_tests.tiny import write_raw


def declare(folder: Path, file: str, **fields: Any) -> Path:
    attributes = {
        "raw": {"files": "raw/*.jsonl"},
        "tokenizer": {"kind": "bytes"},
        "exports": ["bin"],
        "store": "store",
        **fields,
    }
    (folder / file).write_text(yaml.safe_dump(attributes))
    return folder / file


@pytest.fixture
def two(tmp_path: Path) -> list[str | Path]:
    """The options for two datasets."""
    write_raw(tmp_path, {"a.jsonl": ["one"]})
    configs = [declare(tmp_path, f"{name}.yaml", name=name) for name in ("one", "two")]
    return [option for config in configs for option in ("--config", config)]


def test_every_config_is_built_planned_verified_and_collected(two: list[str | Path]):
    assert run("run", *two).exit_code == 0

    for command in ("run", "plan", "gc"):
        document = json.loads(run(command, *two, "--json").stdout)
        assert [one["dataset"] for one in document["datasets"]] == ["one", "two"]
    verified = run("verify", *two).stdout.splitlines()
    assert verified[-1] == "8 outputs: all well"
    assert [line.split()[1] for line in verified[:-2]] == ["one:"] * 4 + ["two:"] * 4


def test_two_configs_of_one_name_and_one_store_are_refused(two: list[str | Path], tmp_path: Path):
    same = declare(tmp_path, "same.yaml", name="two")

    message = refused("run", *two, "--config", same)

    assert message == (
        "error: --config: expected datasets of different names, or with different stores, found "
        f"'two' in {tmp_path}/store for both {tmp_path}/two.yaml and {same}; rename one of them, "
        "or leave one out\n"
    )
    assert not (tmp_path / "store").exists()


def test_names_choose_of_the_datasets_of_configs(two: list[str | Path]):
    for command in ("run", "plan", "tokenizers"):
        document = json.loads(run(command, "two", *two, "--json").stdout)
        assert len(next(iter(document.values()))) == 1, command
    assert "two:" not in (verified := run("verify", "two", *two)).stdout  # of one alone
    assert verified.stdout.endswith("4 outputs: all well\n")
    assert run("verify", "twi", *two).stderr == (
        "error: dataset 'twi': expected one of one, two, found none of that name in the files of "
        "--config; did you mean 'two'?\n"
    )


@pytest.mark.parametrize("command", ["run", "verify"])
def test_an_error_that_arises_after_parsing_names_the_dataset(
    command: str, two: list[str | Path], tmp_path: Path
):
    files = ["raw/*.jsonl", "raw/*.txt"]
    last = declare(tmp_path, "last.yaml", name="last", raw={"files": files})

    run("run", *two)

    assert "error: dataset 'last': raw.files" in run(command, *two, "--config", last).stderr
    assert "error: dataset 'last': raw.files" in run(command, "--config", last).stderr


@pytest.fixture
def piped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Runs a command of a folder with a config on its standard input, which is read once."""
    monkeypatch.chdir(tmp_path)

    def run_piped(command: str, text: bytes) -> Result:
        _standard_input.cache_clear()
        return CliRunner().invoke(app, [command, "--config", "-"], input=text)

    yield run_piped
    _standard_input.cache_clear()


def test_a_config_can_come_from_standard_input(tmp_path: Path, piped: Callable[..., Result]):
    write_raw(tmp_path, {"a.jsonl": ["one", "two"]})
    text = declare(tmp_path, "one.yaml", name="one").read_bytes()

    for command in ("plan", "run", "verify"):
        assert piped(command, text).exit_code == 0, command
    assert (tmp_path / "store/one/exports/bin/latest").exists()
    for wrong, found in ((b"a: [", "standard input: line 1"), (b"\xff", "standard input: ")):
        result = piped("plan", wrong)
        assert (result.exit_code, found in result.stderr) == (2, True), result.stderr

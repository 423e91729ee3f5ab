import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tokflow
from tokflow_tests.cli.commands import refused, run
from tokflow_tests.tiny import write_yaml


def test_the_module_is_the_command_and_its_warnings_say_that_they_are(config: Path):
    cache = config.parent / "store/small/hashes.jsonl"
    cache.mkdir(parents=True)

    result = subprocess.run(
        [sys.executable, "-m", "tokflow", "plan", "--config", config, "--json"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(result.stdout)["datasets"][0]["num_missing"] == 13
    assert result.stderr.startswith(f"warning: {cache}: cannot be used (Is a directory), so all")
    assert result.stderr.count("\n") == 1


def test_the_version_of_the_command_is_that_of_the_package():
    result = run("--version")

    assert result.exit_code == 0
    assert result.stdout == f"tokflow {tokflow.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nothing"], "error: dataset 'nothing': expected one of "),
        (["plan", "--config", "x.yaml"], "x.yaml: expected a YAML file that declares a dataset, "),
        (["verify", "nowhere"], "error: argument 'nowhere': expected a path in a store or a "),
        (["inspect", "nowhere"], "error: nowhere: expected the folder of an output, "),
        (
            ["trace", "nowhere", "--token", "0"],
            "error: nowhere: expected the folder of an export, ",
        ),
        (
            ["trace", "."],
            "error: arguments: expected --token N, --sequence N, or --state FILE with --step N",
        ),
        (["run", "--shard", "0/3"], "error: --shard: expected the number of a share, from 1, "),
        (
            ["run", "x", "--shard", "1/3", "--partition", "a"],
            "expected a share of all raw files, which are checked when all shares are done, found "
            "1/3 and --partition; leave one out",
        ),
        (["run", "x", "--shard", "1/3", "--recheck"], "found 1/3 and --recheck; leave one out"),
        (["run", "--jobs", "0"], "Invalid value for '--jobs'"),
        (["run", "--frobnicate"], "No such option"),
    ],
)
def test_wrong_usage_is_told_from_failure(arguments: list[str], message: str):
    result = run(*arguments)

    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, ["--partition", "d.jsonl"], "--partition: expected a partition of small: a.jsonl, "),
        ({"tokeniser": {}}, [], "found 'tokeniser'; did you mean 'tokenizer'?"),
        ({"raw": {"files": "other/*.jsonl"}}, [], "dataset 'small': raw.files 'other/*.jsonl': "),
        ({"tokenizer": {"kind": "file", "name": "none.json"}}, [], "error: tokenizer.name: "),
    ],
)
def test_what_the_yaml_or_an_option_names_and_is_not_there_is_wrong_usage(
    changes: dict[str, Any], options: list[str], message: str, config: Path
):
    write_yaml(config.parent, **changes)

    told = refused("run", "--config", config, *options)

    assert message in told
    assert "Traceback" not in told


def test_a_run_that_fails_for_another_reason_too_is_a_failure(config: Path):
    (config.parent / "other").mkdir()
    (config.parent / "raw/a.jsonl").write_text("{")
    wrong = write_yaml(config.parent / "other", name="wrong", raw={"files": "none.txt"})

    assert run("run", "--config", wrong).exit_code == 2
    assert run("run", "--config", wrong, "--config", config).exit_code == 1


def test_whoever_stops_reading_stops_the_command_quietly(store: Path):
    result = subprocess.run(
        f"{sys.executable} -m tokflow verify {store} | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.stdout.startswith("ok  tokenizer")
    assert result.stderr == ""

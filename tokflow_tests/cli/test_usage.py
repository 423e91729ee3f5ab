import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

import tokflow
from tokflow.errors import TokflowError
from tokflow.store.manifest import checksum
from tokflow_tests.cli.commands import refused, run
from tokflow_tests.outputs import edit_manifest
from tokflow_tests.tiny import TEXTS, write_raw, write_yaml


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


HUGE = 10**30


def has_four_parts(result: Result) -> bool:
    """Say whether a command failed as it should, with no error that nobody foresaw."""
    is_told = re.match(r"(?s)error: .+: expected .+, found .+; .+\n", result.stderr)
    is_foreseen = "bug of tokflow" not in result.stderr
    return isinstance(result.exception, SystemExit) and is_told is not None and is_foreseen


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    write_raw(folder, TEXTS)
    assert run("run", "--config", write_yaml(folder, exports=["bin", "npy"])).exit_code == 0
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copy", symlinks=True))


def export_of(folder: Path, name: str) -> Path:
    return (folder / "store/small/exports" / name / "latest").resolve()


@pytest.mark.parametrize("number", [72, HUGE])
@pytest.mark.parametrize("option", ["--token", "--sequence"])
def test_a_position_past_the_end_is_told_however_large(option: str, number: int, built: Path):
    name = "bin" if option == "--token" else "npy"

    result = run("trace", export_of(built, name), option, number)

    assert result.exit_code == 2
    assert has_four_parts(result) or "a stream of tokens" in result.stderr


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: m["details"].update(dtype="garbage"), "Invalid enum value 'garbage'"),
        (lambda m: m["details"].update(parts=["../.."]), "$.details.parts[0]"),
        (lambda m: m["counts"].update({"train.num_tokens": -1}), "$.counts[...]"),
        (lambda m: m["files"].update({"a": {"num_bytes": "x", "sha256": ""}}), "$.files[...]"),
        (lambda m: m.update(parents=[]), "$.parents"),
    ],
)
def test_garbage_in_a_manifest_is_told_with_its_field(
    change: Callable[[dict[str, Any]], object], told: str, folder: Path
):
    output = export_of(folder, "bin")
    edit_manifest(output, change)

    result = run("inspect", output)

    assert result.exit_code == 1
    assert has_four_parts(result)
    assert told in result.stderr


@pytest.mark.parametrize(
    "array",
    [np.array([{"a": 1}], dtype=object), np.array([1.5])],
    ids=["objects", "floats"],
)
def test_an_npy_file_of_anything_but_numbers_is_refused(array: np.ndarray, folder: Path):
    output = export_of(folder, "npy")
    np.save(output / "train.npy", array, allow_pickle=True)
    entry = checksum(output / "train.npy")
    edit_manifest(
        output,
        lambda m: m["files"].update(
            {"train.npy": {"num_bytes": entry.num_bytes, "sha256": entry.sha256}}
        ),
    )

    result = run("inspect", output)

    assert result.exit_code == 1
    assert has_four_parts(result)
    assert "expected a .npy file of whole numbers" in result.stderr


@pytest.mark.parametrize("name", ["/dev/zero", "none", "/"])
def test_a_config_that_is_no_file_of_text_is_told(name: str):
    result = run("plan", "--config", name)

    assert result.exit_code == 2
    assert has_four_parts(result)


def break_down(*arguments: object, **more: object) -> None:
    raise ZeroDivisionError("of a split")


def test_the_traceback_of_a_stage_is_shown_where_it_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TOKFLOW_DEBUG", "1")
    monkeypatch.setattr("tokflow.split.stage.write_split", break_down)
    config = write_yaml(folder, split={"parts": {"all": {"start": 0}}}, exports=["bin"])

    result = run("run", "--config", config)

    first, second, *_ = result.stderr.splitlines()
    assert result.exit_code == 1
    assert first.startswith(
        "error: split a.jsonl: expected to finish without an error, found ZeroDivisionError: "
    )
    assert second == "Traceback (most recent call last):"
    assert '/tasks.py", line ' in result.stderr


@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_that_nobody_foresaw_has_four_parts(
    as_json: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.cli.formats.print_table", lambda *_: 1 // 0)
    monkeypatch.setattr("tokflow.cli.formats._document", lambda *_: 1 // 0)

    result = run("formats", *(["--json"] if as_json else []))

    told = result.stderr.removeprefix("error: ").removesuffix("\n")
    assert result.exit_code == 1
    assert told.startswith("tokflow formats: expected to finish without an error, found ZeroDivi")
    assert told.endswith("of which TOKFLOW_DEBUG=1 shows the traceback")
    assert not as_json or str(TokflowError(**json.loads(result.stdout)["error"])) == told

"""Whatever a user types or a store holds, an error has four parts and no traceback."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from tokflow.errors import TokflowError
from tokflow.store.manifest import checksum
from tokflow_tests.cli.commands import run
from tokflow_tests.outputs import edit_manifest
from tokflow_tests.tiny import TEXTS, write_raw, write_yaml

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

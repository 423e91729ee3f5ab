"""Formats, loaders and what they need are imported when they are used; in a fresh process."""

import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tokflow
import tokflow.loaders
from tokflow.exports import FORMATS
from tokflow_tests.tiny import write_raw

HEAVY = {"dagster", "lance", "pandas", "tensorstore", "torch", "transformers"}
"""Packages that no build of bin from JSON lines and parquet needs, and none who reads it."""

FOR_TABLES = {"ssl", "pyarrow.compute", "pyarrow.fs", "pyarrow.parquet"}
"""Modules that come with parquet, and so with a build."""

LOADERS = [f"tokflow.loaders.{of.name}" for of in pkgutil.iter_modules(tokflow.loaders.__path__)]

BUILD = """
import json, sys
from pathlib import Path
from tokflow_tests.tiny import build, declare

folder = Path(sys.argv[1])
documents = {"on_bad_document": "reject"}
dataset = declare(folder, raw={"files": "raw/*"}, documents=documents, exports=["bin"])
made = build(dataset).export("bin")
print(json.dumps([made.output.folder.as_posix(), [*sys.modules]]))
"""

OPEN = """
import json, sys
import tokflow.loaders

assert not {"numpy", "pyarrow"} & {*sys.modules}
from tokflow.exports import FORMATS
assert "bin" in sorted(FORMATS)
assert not [name for name in FORMATS if f"tokflow.exports.formats.{name}" in sys.modules]
export = tokflow.open_export(sys.argv[1])
assert [of["token_ids"].tolist() for of in export.read("train")] == [[*b"abc", 256, *b"d", 256]]
before = [*sys.modules]
import LOADERS
print(json.dumps([before, [*sys.modules]]))
"""


def modules_after(code: str, argument: object) -> tuple[Any, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", code, str(argument)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def formats_in(modules: list[str]) -> list[str]:
    return [name for name in FORMATS if f"tokflow.exports.formats.{name}" in modules]


def test_building_opening_and_loading_an_export_import_its_format_alone(tmp_path: Path):
    write_raw(tmp_path, {"a.jsonl": ["abc"], "b.parquet": ["d", None]})

    folder, built = modules_after(BUILD, tmp_path)
    opened, loading = modules_after(OPEN.replace("LOADERS", ", ".join(LOADERS)), folder)

    assert formats_in(built) == formats_in(opened) == ["bin"]
    assert not HEAVY & {*built}
    assert not (HEAVY | FOR_TABLES) & {*opened}
    assert not (HEAVY | {"grain", "jax", "tokenizers"}) & {*loading}


@pytest.mark.parametrize("module", [tokflow, tokflow.loaders])
def test_a_shell_completes_names_that_are_not_imported_yet(module: ModuleType):
    assert {*module.__all__} <= {*dir(module)}


def test_every_module_of_the_folder_is_a_format_of_that_name():
    for name, format_ in FORMATS.items():
        assert format_.options.__module__ == f"tokflow.exports.formats.{name}"

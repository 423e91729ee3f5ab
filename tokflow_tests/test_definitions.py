"""What Dagster loads from this checkout."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import dagster as dg
import pytest
import yaml

ROOT = Path(__file__).parent.parent


def test_all_declared_datasets_load():
    from tokflow.build.declared import list_declared
    from tokflow.definitions import defs

    loaded = defs()

    dg.Definitions.validate_loadable(loaded)
    assert {spec.group_name for spec in loaded.resolve_all_asset_specs()} == set(list_declared())


def test_in_another_project_its_own_datasets_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from tokflow.definitions import defs

    monkeypatch.chdir(tmp_path)

    assert defs().resolve_all_asset_specs() == []
    assert not defs().sensors


def test_the_wheel_brings_no_dataset():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]

    assert "tokflow.defs*" in setuptools["packages"]["find"]["exclude"]
    assert setuptools["package-data"] == {"tokflow": ["py.typed"]}


def test_loading_imports_nothing_heavy_and_writes_nothing(tmp_path: Path):
    program = (
        "import sys, dagster as dg\n"
        "from tokflow.definitions import defs\n"
        "dg.Definitions.validate_loadable(defs())\n"
        "heavy = 'pandas transformers torch gigatoken tokenizers tiktoken huggingface_hub fsspec'\n"
        "print([name for name in heavy.split() if name in sys.modules])\n"
    )
    environment = {**os.environ, "DAGSTER_HOME": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert list(tmp_path.iterdir()) == []


def test_the_workspace_names_the_module_and_no_pyproject_table_hides_it():
    workspace = yaml.safe_load((ROOT / "workspace.yaml").read_text())
    pyproject = (ROOT / "pyproject.toml").read_text()

    assert workspace["load_from"][0]["python_module"]["module_name"] == "tokflow.definitions"
    assert "[tool.dagster" not in pyproject
    assert "[tool.dg" not in pyproject


def test_no_telemetry_and_state_in_the_project():
    settings = yaml.safe_load((ROOT / "dagster.yaml").read_text())

    assert settings["telemetry"] == {"enabled": False}
    assert settings["instance_class"]["class"] == "ProjectInstance"
    assert ".dagster/" in (ROOT / ".gitignore").read_text().splitlines()

"""Dagster's instance of the project."""

import os
from pathlib import Path

import pytest

from tokflow.components import open_instance


def test_the_instance_is_the_one_of_the_project_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = tmp_path / "project"
    project.mkdir()
    (project / "dagster.yaml").write_text("storage: {sqlite: {base_dir: state}}\n")
    monkeypatch.setattr("tokflow.components.instance.project_root", lambda: project)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    before = dict(os.environ)
    monkeypatch.chdir(tmp_path)

    with open_instance() as instance:
        instance.add_dynamic_partitions("files", ["a"])

    assert (project / "state" / "history" / "runs.db").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["project"]
    assert dict(os.environ) == before
    with open_instance() as instance:
        assert list(instance.get_dynamic_partitions("files")) == ["a"]


def test_dagster_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))

    with open_instance() as instance:
        assert instance.root_directory == str(tmp_path)

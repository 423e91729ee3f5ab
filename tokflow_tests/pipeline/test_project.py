"""The project that one stands in."""

from pathlib import Path

import pytest

from tokflow.pipeline.project import Project, find_project, project_root
from tokflow_tests.projects import make_project


def test_the_project_is_the_nearest_upward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    project = make_project(tmp_path / "outer" / "inner")
    make_project(tmp_path / "outer")
    (project / "notebooks").mkdir()
    (project / "notebooks/pyproject.toml").write_text("[tool.ruff]\nline-length = 99\n")
    monkeypatch.chdir(project / "notebooks")

    assert find_project() == Project(project, project / "mine/defs")
    assert project_root() == project


@pytest.mark.parametrize(
    ("name", "text", "defs"),
    [
        ("pyproject.toml", "[tool.dg.project]\nroot_module = 'mine'", "src/mine/defs"),
        ("pyproject.toml", "[tool.dg.project]\ndefs_module = 'mine.of.data'", "mine/of/data"),
        ("dg.toml", "[project]\nroot_module = 'mine'", "mine/defs"),
    ],
)
def test_its_definitions_are_where_dg_has_them(name: str, text: str, defs: str, tmp_path: Path):
    (tmp_path / name).write_text(text)
    (tmp_path / "src/other").mkdir(parents=True)
    (tmp_path / defs).mkdir(parents=True)

    assert find_project(tmp_path) == Project(tmp_path, tmp_path / defs)


def test_outside_of_a_project_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pyproject.toml").write_text("[tool.dg]\ndirectory_type = 'workspace'\n")
    (tmp_path / "tokflow/defs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    assert find_project() is None
    assert project_root() == tmp_path

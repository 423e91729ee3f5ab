"""The datasets that a project declares."""

from pathlib import Path

import pytest

from tokflow.errors import ConfigError
from tokflow.pipeline.declared import list_declared
from tokflow.pipeline.project import Project, find_project, project_root
from tokflow_tests.projects import attributes, declare_in, load_declared, make_project
from tokflow_tests.tiny import load_dataset


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one dataset; the current folder is one in it."""
    project = make_project(tmp_path / "project")
    declare_in(project, "own", "own")
    (project / "notebooks").mkdir()
    monkeypatch.chdir(project / "notebooks")
    return project


def error_of(name: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load_declared(name)
    return str(raised.value)


def test_declared_datasets_are_those_of_the_project_one_stands_in(project: Path):
    dataset = load_declared("own")

    assert list(list_declared()) == ["own"]
    assert dataset.base == project
    assert dataset.store.root == project / "store"
    assert load_declared("own", store=project / "other").store.root == project / "other"


def test_the_name_is_what_the_yaml_says_wherever_it_lies(project: Path):
    declare_in(project, "deep/er", "one", "two")
    declare_in(project, ".hidden", "hidden")
    declare_in(project, "own/below", "never")  # nor does Dagster look below a defs.yaml

    assert list(list_declared()) == ["one", "own", "two"]
    assert load_declared("two").name == "two"


def test_folders_of_other_components_are_looked_into_as_dagster_does(project: Path):
    declare_in(project, "team/data", "data")
    (project / "mine/defs/team/defs.yaml").write_text("type: dagster.DefsFolderComponent\n")
    declare_in(project, "sling/data", "never")
    (project / "mine/defs/sling/defs.yaml").write_text("type: their.Component\nanything: 5\n")

    assert list(list_declared()) == ["data", "own"]


def test_two_of_one_name_are_an_error_that_names_both(project: Path):
    declare_in(project, "other", "ok", "own")

    assert error_of("own") == (
        "dataset 'own': expected another name for each dataset of a project, hyphens taken for "
        f"underscores, found {project}/mine/defs/other/defs.yaml: document 2 and "
        f"{project}/mine/defs/own/defs.yaml; rename all but one of them"
    )
    assert load_declared("ok").name == "ok"


def test_names_that_dagster_takes_for_the_same_are_refused(project: Path):
    declare_in(project, "files", "a-b", "a_b")

    assert error_of("a-b") == error_of("a_b")
    assert "datasets 'a-b' and 'a_b': expected another name" in error_of("a-b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("type: tokflow.components.TextDataset\n{", "line 2"),
        ("type: tokflow.components.TextDatset", "type: expected tokflow.components.TextDataset"),
        ("attributes: {name: bad}", "type: expected tokflow.components.TextDataset, found none"),
        ("type: tokflow.components.TextDataset\nattribute: {}", "did you mean 'attributes'?"),
        ("type: tokflow.components.TextDataset\nattributes: {name: bad}", "expected `raw:`"),
    ],
)
def test_a_broken_file_breaks_no_other_dataset(text: str, message: str, project: Path):
    path = declare_in(project, "bad", "any")
    path.write_text(text)

    assert list(list_declared()) == ["bad", "own"]
    assert load_declared("own").name == "own"
    assert message in error_of("bad")
    assert error_of("bad").startswith(str(path))


def test_a_broken_file_takes_no_name_from_another(project: Path):
    path = declare_in(project, "deep/own", "any")
    path.write_text("type: tokflow.components.TextDataset\n{")

    assert list(list_declared()) == [str(path), "own"]
    assert load_declared("own").name == "own"


def test_relative_paths_mean_the_same_by_name_and_by_file(project: Path):
    path = declare_in(project, "deep/one", "one")

    assert load_dataset(path).base == load_declared("one").base == project
    assert load_dataset(path) == load_declared("one")


def test_templates_are_resolved_also_in_the_name(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LANGUAGE", "de")
    raw = {"files": "{{ env.LANGUAGE }}/*.txt"}
    path = declare_in(project, "wiki", attributes("wiki-{{ env.LANGUAGE }}", raw=raw))

    dataset = load_declared("wiki-de")

    assert dataset.raw.files == ("de/*.txt",)
    assert load_dataset(path) == dataset
    monkeypatch.delenv("LANGUAGE")
    assert "wiki/defs.yaml: name: expected a variable LANGUAGE" in error_of("wiki")


def test_a_mixture_finds_its_sources_in_the_project_and_none_that_is_declared_twice(project: Path):
    mixture = {"sources": {name: {"weight": 1} for name in ("own", "beside")}}
    declare_in(project, "mix", {"name": "mix", "mixture": mixture, "store": "store"}, "beside")

    assert [source.name for source in load_declared("mix").sources] == ["own", "beside"]

    declare_in(project, "other", "beside")
    assert "dataset 'beside': expected another name" in error_of("mix")


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

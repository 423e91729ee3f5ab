"""Where declared datasets are."""

from pathlib import Path

import pytest

from tokflow.build.declared import list_declared, load_declared, project_root
from tokflow.errors import ConfigError

DECLARATION = """\
type: tokflow.components.TextDataset
attributes:
  name: {name}
  raw: {{files: data/*.txt}}
  tokenizer: {{kind: bytes}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one dataset; the current folder is one in it."""
    project = tmp_path / "project"
    declare(project, "own")
    (project / "notebooks").mkdir()
    monkeypatch.chdir(project / "notebooks")
    return project


def declare(project: Path, folder: str, name: str | None = None) -> Path:
    path = project / "tokflow" / "defs" / folder / "defs.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(DECLARATION.format(name=name or folder))
    return path


def test_declared_datasets_are_those_of_the_project_one_stands_in(project: Path):
    dataset = load_declared("own")

    assert list_declared() == {"own": project / "tokflow/defs/own/defs.yaml"}
    assert project_root() == project
    assert dataset.base == project
    assert dataset.store == project / "data/store"


def test_outside_of_a_project_nothing_is_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    assert project_root() == tmp_path
    assert list_declared() == {}


def test_a_store_can_be_another(project: Path, tmp_path: Path):
    assert load_declared("own", store=tmp_path / "store").store == tmp_path / "store"


def test_an_unknown_name_lists_those_that_there_are(project: Path):
    with pytest.raises(ConfigError) as raised:
        load_declared("owl")

    assert str(raised.value) == (
        f"dataset 'owl': expected one of own, found none of that name in {project}/tokflow/defs; "
        "name one of them, declare it in tokflow/defs/owl/defs.yaml, or go to the folder of its "
        "project"
    )


def test_a_dataset_has_the_name_of_its_folder(project: Path):
    declare(project, "one", name="two")

    with pytest.raises(ConfigError, match="expected the name of its folder, 'one', found 'two'"):
        load_declared("one")


def test_a_dataset_that_dagster_takes_for_exports_of_another_is_refused(project: Path):
    declare(project, "own__exports")

    with pytest.raises(ConfigError, match="expected no '__exports', by which Dagster names"):
        load_declared("own__exports")


def test_a_broken_file_breaks_no_other_dataset(project: Path):
    declare(project, "bad").write_text("{")

    assert list(list_declared()) == ["bad", "own"]
    assert load_declared("own").name == "own"

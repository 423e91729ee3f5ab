"""The YAML that `dg scaffold defs` writes; that dg calls it is shown by tokflow_tests/dg."""

from pathlib import Path
from typing import Any

import click
import dagster as dg
import pytest

from tokflow.components.text_dataset import DatasetParams, DatasetScaffolder
from tokflow_tests.projects import declare_in, make_project
from tokflow_tests.tiny import load_dataset


def scaffold(project: Path, name: str, **fields: Any) -> Path:
    """Return the folder of a scaffold, made as dg makes it."""
    folder = project / "defs" / name
    folder.mkdir(parents=True)
    request = dg.ScaffoldRequest(
        type_name="tokflow.components.TextDataset",
        target_path=folder,
        scaffold_format=fields.pop("format", "yaml"),
        project_root=project,
        params=DatasetParams(**fields),
    )
    DatasetScaffolder().scaffold(request)
    return folder


def test_without_files_it_names_the_folder_where_they_are_to_be(tmp_path: Path):
    folder = scaffold(tmp_path, "new", text="content")

    dataset = load_dataset(folder / "defs.yaml", base=tmp_path)
    assert (dataset.name, dataset.raw.files) == ("new", ("data/raw/new/*",))
    assert dataset.documents.text == "content"


def test_files_that_are_in_that_folder_are_looked_at(tmp_path: Path):
    (tmp_path / "data/raw/new").mkdir(parents=True)
    (tmp_path / "data/raw/new/a.jsonl").write_text('{"body": "some text", "id": "1"}\n')

    folder = scaffold(tmp_path, "new")

    dataset = load_dataset(folder / "defs.yaml", base=tmp_path)
    assert dataset.raw.files == ("data/raw/new/*.jsonl",)
    assert dataset.documents.text == "body"


def test_files_and_column_may_be_given_relative_to_the_project(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"body": "some text", "id": "1"}\n')

    folder = scaffold(tmp_path, "my-own", files=["a.jsonl"], text="id")

    dataset = load_dataset(folder / "defs.yaml", base=tmp_path)
    assert (dataset.name, dataset.raw.files) == ("my-own", ("a.jsonl",))
    assert dataset.documents.text == "id"


def test_a_name_like_that_of_another_dataset_is_refused(tmp_path: Path):
    project = make_project(tmp_path)
    declare_in(project, "some", "a_b")

    with pytest.raises(click.ClickException, match="found 'a_b' in "):
        scaffold(project, "a-b")
    assert scaffold(project, "a-c").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"files": ["none.jsonl"]}, "found no such file"), ({"format": "python"}, "expected yaml")],
)
def test_what_fails_leaves_no_folder_that_dg_would_refuse(
    tmp_path: Path, fields: dict[str, Any], message: str
):
    with pytest.raises(click.ClickException, match=message):
        scaffold(tmp_path, "new", **fields)

    assert not (tmp_path / "defs/new").exists()

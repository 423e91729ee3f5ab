"""`dg scaffold defs tokflow.components.TextDataset NAME`: a commented YAML, as `tokflow init`'s."""

import dataclasses
from pathlib import Path

import click
import dagster as dg
import pydantic

from tokflow.documents import format_of_name
from tokflow.errors import TokflowError
from tokflow.pipeline.dataset import DEFAULT_STORE
from tokflow.pipeline.declarations.declared import YAML_NAMES, check_new
from tokflow.pipeline.declarations.project import find_project
from tokflow.pipeline.declarations.raw_patterns import as_name, patterns_of, shortened_to
from tokflow.pipeline.declarations.suggestion import UNSEEN, suggest
from tokflow.pipeline.declarations.yaml_writer import dataset_yaml
from tokflow.store.atomic import remove_empty


class DatasetParams(pydantic.BaseModel):
    """Parameters that `dg scaffold defs` takes."""

    model_config = pydantic.ConfigDict(extra="forbid", use_attribute_docstrings=True)

    files: list[str] | None = None
    """Raw files of this machine to look at: paths, globs or folders, relative to the project."""
    text: str | None = None
    """Field or column that holds the text; by default the one that has most of it."""


class DatasetScaffolder(dg.Scaffolder[DatasetParams]):
    """Writes the YAML of a dataset. Without `files` it is one of `data/raw/NAME/*`, which are
    looked at if they are there already."""

    @classmethod
    def get_scaffold_params(cls) -> type[DatasetParams]:
        """Return the parameters."""
        return DatasetParams

    def scaffold(self, request: dg.ScaffoldRequest[DatasetParams]) -> None:
        """Write `defs.yaml` into the folder of the request, or nothing at all."""
        try:
            if request.scaffold_format != "yaml":
                raise click.UsageError("--format: expected yaml, which declares a dataset")
            text = _text(request)
        except (TokflowError, click.ClickException) as error:
            remove_empty([request.target_path])  # Dagster made it, and would refuse a second try
            if isinstance(error, TokflowError):
                raise click.ClickException(str(error)) from None
            raise
        with (request.target_path / YAML_NAMES[0]).open("x", encoding="utf-8") as file:
            file.write(text)


def _text(request: dg.ScaffoldRequest[DatasetParams]) -> str:
    name, params = as_name(request.target_path.name), request.params
    root = request.project_root or Path.cwd()
    project = find_project(root)
    if project is not None:
        check_new(name, request.target_path / YAML_NAMES[0], project)
    raw = root / "data/raw" / name
    files = params.files
    if files is None and any(format_of_name(path.name) for path in raw.rglob("*")):
        files = [str(raw)]
    if files is None:
        suggested = dataclasses.replace(UNSEEN, documents={"text": params.text or "text"})
        return dataset_yaml(name, [f"data/raw/{name}/*"], suggested, in_project=True)
    patterns = patterns_of(files, here=root, store=root / DEFAULT_STORE)
    suggested = suggest(patterns, text=params.text)
    return dataset_yaml(name, shortened_to(root, patterns), suggested, in_project=True)

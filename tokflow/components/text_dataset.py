"""TextDataset: everything that Dagster does for one dataset."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import dagster as dg
import pydantic

from tokflow.build.dataset import Dataset
from tokflow.build.declared import Declaration, find_declarations, is_first
from tokflow.build.project import find_project
from tokflow.components.assets import make_assets
from tokflow.components.automation import (
    automation_sensor,
    files_sensor,
    scan_job,
    scan_schedule,
)
from tokflow.components.broken import broken_definitions
from tokflow.components.build_job import build_job
from tokflow.components.scaffolder import DatasetScaffolder
from tokflow.errors import TokflowError

EXECUTORS: Mapping[str, dg.ExecutorDefinition] = {
    "in_process": dg.in_process_executor,
    "multiprocess": dg.multiprocess_executor,
}

TEMPLATE = {"type": "string", "pattern": r"\{[{%]"}
"""Schema of what may stand for a number or a choice."""


class Attributes(pydantic.RootModel[dict[str, Any]]):
    """The attributes as they stand in the YAML, with templates; the schema is that of a dataset."""

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the schema of a dataset, in which a template may stand for a number or choice."""
        schema = Dataset.model_json_schema(*args, **kwargs)
        for model in (schema, *schema["$defs"].values()):
            fields = model.get("properties", {})
            fields.update({name: _with_template(field) for name, field in fields.items()})
        return schema


def _with_template(field: dict[str, Any]) -> dict[str, Any]:
    choices = field.get("anyOf", [field])
    kinds = {of.get("type") for of in choices}
    is_choice = any("enum" in of for of in choices)
    is_text = "string" in kinds and not is_choice
    if is_text or not (is_choice or kinds & {"integer", "number", "boolean"}):
        return field
    said: dict[str, Any] = {
        key: field[key] for key in ("title", "description", "default") if key in field
    }
    bare = [{key: value for key, value in of.items() if key not in said} for of in choices]
    return {**said, "anyOf": [*bare, TEMPLATE]}


@dg.scaffold_with(DatasetScaffolder)
@dataclass
class TextDataset(dg.Component):
    """Raw text in, LLM training data out: assets, checks, jobs, sensors and a schedule.

    Its attributes are those of a dataset's YAML for `tokflow run`, and mean the same. Relative
    paths start at the project's root. Templates as `{{ env.NAME }}` may stand in any field but a
    chat template, which is Jinja itself.
    """

    dataset: Dataset | None
    """None where it cannot be loaded, or another YAML has said so."""
    name: str = ""
    """That of one that cannot be loaded."""
    error: TokflowError | None = None
    """Why."""

    @classmethod
    def get_model_cls(cls) -> type[Attributes]:
        """Return the schema of the attributes."""
        return Attributes

    @classmethod
    def load(cls, attributes: pydantic.BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Return the component that a defs.yaml of any Dagster project declares.

        What is wrong in it is shown in its place: it raises nothing, for that would take all
        others of the code location with it.
        """
        values = attributes.root if isinstance(attributes, Attributes) else {}
        declaration = _declaration(context, values)
        if declaration is None:
            return cls(None)
        try:
            return cls(declaration.load(scope=context.resolution_context.scope))
        except TokflowError as error:
            return cls(None, declaration.name, error)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions; nothing is read or written for it."""
        if self.dataset is not None:
            return make_definitions(self.dataset)
        return broken_definitions(self.name, self.error) if self.error else dg.Definitions()


def _declaration(
    context: dg.ComponentLoadContext, attributes: Mapping[str, Any]
) -> Declaration | None:
    """Return what declares a component; None if another of the same name says what is wrong."""
    place = context.component_loc
    folder, index = getattr(place, "file_path", None), getattr(place, "instance_key", None)
    if folder is None:  # of no YAML file
        name = str(attributes.get("name", "dataset"))
        where = Path("attributes")
        return Declaration(name, where, 0, context.project_root, attributes)
    project = find_project(context.project_root)
    declarations = find_declarations(project) if project else []
    own = [of for of in declarations if (of.path.parent, of.index) == (folder, index or 0)]
    if not own:
        name = str(attributes.get("name", folder.name))
        return Declaration(name, folder / "defs.yaml", 0, context.project_root, attributes)
    return own[0] if is_first(own[0], declarations) else None


def make_definitions(dataset: Dataset) -> dg.Definitions:
    """Return all definitions of a dataset."""
    with warnings.catch_warnings():
        # Backfill policies and a few more are called beta though they stay as they are in 1.13.
        warnings.simplefilter("ignore", category=dg.BetaWarning)
        warnings.simplefilter("ignore", category=dg.PreviewWarning)
        scan = scan_job(dataset)
        return dg.Definitions(
            assets=make_assets(dataset),
            jobs=[build_job(dataset), scan],
            sensors=[files_sensor(dataset, scan), automation_sensor(dataset)],
            schedules=[scan_schedule(dataset, scan)],
            executor=EXECUTORS.get(dataset.executor or ""),
        )

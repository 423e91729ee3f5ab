"""TextDataset: everything that Dagster does for one dataset."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import dagster as dg
import pydantic

from tokflow.build.dataset import Dataset
from tokflow.build.declared import Declaration, find_declarations, is_first
from tokflow.build.project import find_project
from tokflow.components.attributes import Attributes
from tokflow.components.broken import broken_definitions
from tokflow.components.dataset_definitions import asset_definitions, job_definitions
from tokflow.components.scaffolder import DatasetScaffolder
from tokflow.errors import TokflowError


@dg.scaffold_with(DatasetScaffolder)
@dataclass
class TextDataset(dg.Component):
    """Raw text in, LLM training data out: assets, checks, jobs, a sensor and a schedule.

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
        """Return the definitions; nothing is read or written for it.

        The first of all datasets brings the jobs of all: Dagster refuses two sensors of one name,
        and a sensor for jobs that come from elsewhere.
        """
        if self.dataset is None:
            return broken_definitions(self.name, self.error) if self.error else dg.Definitions()
        is_alone = getattr(context.component_loc, "file_path", None) == context.project_root
        # Of what `build_defs_for_component` is given, whose tree is the whole working folder.
        others = [] if is_alone else context.component_tree.get_all_components(TextDataset)
        datasets = {of.dataset.name: of.dataset for of in (*others, self) if of.dataset}
        own = asset_definitions(self.dataset)
        if self.dataset.name != min(datasets):
            return own
        return dg.Definitions.merge(own, job_definitions(list(datasets.values())))


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

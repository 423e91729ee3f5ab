"""TextDataset: everything that Dagster does for one dataset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from typing import Any, Self

import dagster as dg
import pydantic

from tokflow.components.attributes import Attributes
from tokflow.components.broken import broken_definitions
from tokflow.components.dataset_definitions import asset_definitions, job_definitions
from tokflow.components.scaffolder import DatasetScaffolder
from tokflow.errors import TokflowError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declarations.declared import (
    Declaration,
    declared_by,
    find_declarations,
    is_first,
)
from tokflow.pipeline.declarations.project import find_project


@dg.scaffold_with(DatasetScaffolder)
@dataclass
class TextDataset(dg.Component):
    """Raw text in, LLM training data out: assets, checks, jobs, a sensor and a schedule.

    Its attributes are those of a dataset's YAML for `tokflow run`, and mean the same. Relative
    paths start at the project's root. Templates as `{{ env.NAME }}` may stand in any field but a
    chat template, which is Jinja itself.
    """

    datasets: Sequence[Dataset]
    """One, or those of `datasets:`; but for those that cannot be loaded."""
    broken: Mapping[str, TokflowError] = field(default_factory=dict)
    """Why one cannot be loaded, by its name, unless another YAML says so."""

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
        datasets, broken = [], {}
        for declaration in _declarations(context, values):
            try:
                datasets.append(declaration.load(scope=context.resolution_context.scope))
            except TokflowError as error:
                broken[declaration.name] = error
        return cls(datasets, broken)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions; nothing is read or written for it.

        The first of all datasets brings the jobs of all: Dagster refuses two sensors of one name,
        and a sensor for jobs that come from elsewhere.
        """
        own = [
            *map(asset_definitions, self.datasets),
            *starmap(broken_definitions, self.broken.items()),
        ]
        is_alone = getattr(context.component_loc, "file_path", None) == context.project_root
        # Of what `build_defs_for_component` is given, whose tree is the whole working folder.
        others = [] if is_alone else context.component_tree.get_all_components(TextDataset)
        datasets = {of.name: of for component in (*others, self) for of in component.datasets}
        if datasets and min(datasets) in {of.name for of in self.datasets}:
            own.append(job_definitions(list(datasets.values())))
        return dg.Definitions.merge(*own)


def _declarations(
    context: dg.ComponentLoadContext, attributes: Mapping[str, Any]
) -> list[Declaration]:
    """Return what declares the datasets of a component, but for those of which another of the same
    name says what is wrong."""
    place = context.component_loc
    folder, index = getattr(place, "file_path", None), getattr(place, "instance_key", None)
    project = find_project(context.project_root) if folder else None  # else of no YAML file
    declarations = find_declarations(project) if project else []
    own = [of for of in declarations if (of.path.parent, of.index) == (folder, index or 0)]
    if own:
        return [of for of in own if is_first(of, declarations)]
    path = folder / "defs.yaml" if folder else Path("attributes")
    name = folder.name if folder else "dataset"
    document = Declaration(name, path, 0, context.project_root, {}, str(path))
    return declared_by(document, attributes)

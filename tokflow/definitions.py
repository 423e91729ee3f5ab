"""Definitions of this repository: what `tokflow/defs` holds, or the project one stands in; with the
messages about failed runs that the environment asks for."""

import logging
from pathlib import Path

import dagster as dg

from tokflow.components import TextDataset, failure_alerts
from tokflow.pipeline.declared import find_declarations, is_first
from tokflow.pipeline.project import Project, find_project


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of the project that one stands in or, in none, of this repository.

    An installed wheel is in none, and has no dataset of its own.
    """
    project = find_project() or find_project(Path(__file__).parent)
    found = _load(project) if project else dg.Definitions()
    own = {of.name for of in found.sensors or ()}
    alerts = [of for of in failure_alerts() if of.name not in own]
    found = dg.Definitions.merge(found, dg.Definitions(sensors=alerts))
    if found.executor:
        return found
    # A step is quick to start only where the last one ran; the work in it is parallel.
    return dg.Definitions.merge(found, dg.Definitions(executor=dg.in_process_executor))


def _load(project: Project) -> dg.Definitions:
    """Return what Dagster loads from the project; the datasets alone where it can load nothing:
    where one's YAML cannot even be read, or the package of that name that is installed is a wheel,
    which has no definitions."""
    declarations = find_declarations(project)
    try:
        return dg.load_from_defs_folder(path_within_project=project.root)
    except Exception as error:
        module = str(getattr(error, "name", "")).replace(".", "/") or "none"
        is_of_a_wheel = isinstance(error, ModuleNotFoundError) and project.defs.match(module)
        if not is_of_a_wheel and all(of.error is None for of in declarations):
            raise
        told = "loaded are the datasets alone, since Dagster cannot load all of %s: %s"
        logging.getLogger("tokflow").error(told, project.defs, error)
    own = (of for of in declarations if is_first(of, declarations))
    return TextDataset.declared(own).definitions()

"""Definitions that Dagster loads: all datasets of the project it is started in."""

import dagster as dg

from tokflow.build.declared import list_declared, load_declared
from tokflow.components import make_definitions


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of all datasets.

    Each YAML file is loaded as `tokflow run` loads it, so both understand it alike; Dagster's own
    `load_from_defs_folder` needs a pyproject.toml, which an installed wheel does not have.
    """
    declared = list_declared()
    return dg.Definitions.merge(
        # A step is quick to start only where the last one ran; the work in it is parallel.
        dg.Definitions(executor=dg.in_process_executor),
        make_definitions(*map(load_declared, declared), declared_in=declared),
    )

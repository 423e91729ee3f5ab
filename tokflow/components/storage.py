"""Dagster's instance of a project, which dagster.yaml names: its state is beside that file.

Relative folders of Dagster's own start at the working folder, so that with DAGSTER_HOME set each
working folder would get a history of its own; and without it the state is in a temporary folder.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import dagster as dg

from tokflow.store.config import expanded

STATE_FOLDER = ".dagster"


class ProjectInstance(dg.DagsterInstance):
    """History, files and logs of runs in `.dagster` beside dagster.yaml, unless that says where.

    Dagster reads dagster.yaml from DAGSTER_HOME or, if that is not set, from the current folder.
    """

    @classmethod
    def config_schema(cls) -> Mapping[str, Any]:
        """Return the keys of dagster.yaml that are for this class alone: none."""
        return {}

    @classmethod
    def config_defaults(cls, base_dir: str) -> Mapping[str, Any]:
        """Return Dagster's own defaults, in that folder in place of `base_dir`."""
        home = expanded(os.environ.get("DAGSTER_HOME") or Path.cwd())
        # Dagster exports this class nowhere, but takes it in a method that is public.
        instance_ref = get_type_hints(dg.DagsterInstance.from_ref)["instance_ref"]
        defaults: Mapping[str, Any] = instance_ref.config_defaults(os.fspath(home / STATE_FOLDER))
        return defaults

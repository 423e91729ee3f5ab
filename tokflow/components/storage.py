"""Dagster's storage, which dagster.yaml names: relative folders in it start beside dagster.yaml.

Those of Dagster's own classes start at the working folder, so that with DAGSTER_HOME set each
working folder would get a history of its own.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager
from dagster._core.storage.root import LocalArtifactStorage
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage


class _BesideDagsterYaml:
    """A storage whose folder is absolute where dagster.yaml names a relative one.

    Dagster reads dagster.yaml from DAGSTER_HOME or, if that is not set, from the current folder;
    the processes that it starts inherit both.
    """

    @classmethod
    def from_config_value(cls, inst_data: Any, config_value: Mapping[str, Any]) -> Any:
        """Return Dagster's own storage, in that folder."""
        home = Path(os.environ.get("DAGSTER_HOME") or Path.cwd()).expanduser()
        config = {**config_value, "base_dir": os.fspath(home / config_value["base_dir"])}
        return super().from_config_value(inst_data, config)  # type: ignore[misc]


class History(_BesideDagsterYaml, DagsterSqliteStorage):
    """Runs, events and schedules in SQLite."""


class Artifacts(_BesideDagsterYaml, LocalArtifactStorage):
    """Files that runs leave."""


class ComputeLogs(_BesideDagsterYaml, LocalComputeLogManager):
    """Texts that runs print."""

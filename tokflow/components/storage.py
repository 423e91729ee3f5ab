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
from dagster._serdes import ConfigurableClassData


class History(DagsterSqliteStorage):
    """Runs, events and schedules in SQLite."""

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData, config_value: Any) -> "History":
        """Return the storage that dagster.yaml describes."""
        return cls.from_local(inst_data=inst_data, **_beside_dagster_yaml(config_value))


class Artifacts(LocalArtifactStorage):
    """Files that runs leave."""

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Any
    ) -> "Artifacts":
        """Return the storage that dagster.yaml describes."""
        return cls(inst_data=inst_data, **_beside_dagster_yaml(config_value))


class ComputeLogs(LocalComputeLogManager):
    """Texts that runs print."""

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Any
    ) -> "ComputeLogs":
        """Return the storage that dagster.yaml describes."""
        return cls(inst_data=inst_data, **_beside_dagster_yaml(config_value))


def _beside_dagster_yaml(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with an absolute folder.

    Dagster reads dagster.yaml from DAGSTER_HOME or, if that is not set, from the current folder;
    the processes that it starts inherit both.
    """
    home = Path(os.environ.get("DAGSTER_HOME") or Path.cwd()).expanduser()
    return {**config, "base_dir": os.fspath(home / config["base_dir"])}

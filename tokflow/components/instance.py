"""Dagster's record of runs and materializations, found where `dagster dev` keeps it."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster._core.instance.config import DAGSTER_CONFIG_YAML_FILENAME, is_dagster_home_set
from dagster._core.instance.ref import InstanceRef

from tokflow.build.declared import project_root

STATE_FOLDER = ".dagster"

DEFAULTS: Mapping[str, Any] = {"telemetry": {"enabled": False}, "nux": {"enabled": False}}
"""Used where there is no dagster.yaml."""


@contextmanager
def open_instance() -> Iterator[dg.DagsterInstance]:
    """Yield the instance that `dagster dev` uses when it is started in the project root.

    That is the one in DAGSTER_HOME if it is set, else the one that the project's dagster.yaml
    describes, its relative folders starting at the project root from wherever this is called.
    Nothing is temporary, and the environment stays as it is.
    """
    if is_dagster_home_set():
        with dg.DagsterInstance.get() as instance:
            yield instance
        return
    root = project_root()
    (root / STATE_FOLDER).mkdir(exist_ok=True)
    reference = InstanceRef.from_dir(
        os.fspath(root / STATE_FOLDER),
        config_dir=os.fspath(root),
        overrides=_absolute_folders(root),
    )
    with dg.DagsterInstance.from_ref(reference) as instance:
        yield instance


def _absolute_folders(root: Path) -> dict[str, Any]:
    """Return the settings of the project's dagster.yaml with its relative folders made absolute."""
    path = root / DAGSTER_CONFIG_YAML_FILENAME
    if not path.is_file():
        return dict(DEFAULTS)
    settings: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for section in ("storage", "local_artifact_storage", "compute_logs"):
        if section in settings:
            settings[section] = _absolute(settings[section], root)
    return settings


def _absolute(value: object, root: Path) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {
        key: os.fspath(root / inner)
        if key == "base_dir" and isinstance(inner, str)
        else _absolute(inner, root)
        for key, inner in value.items()
    }

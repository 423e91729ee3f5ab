"""The current project of Dagster's `dg`, and the folder of its definitions."""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokflow.errors import ConfigError, message_of

PROJECT_VARIABLE = "TOKFLOW_PROJECT"
"""Environment variable with the project's folder, like `--project`."""

KEEPS_STATE = {"storage", "run_storage", "instance_class"}
"""Keys of a dagster.yaml that say where Dagster keeps its state."""


@dataclass(frozen=True, slots=True)
class Project:
    """A Dagster project, from `[tool.dg.project]` of its pyproject.toml or from dg.toml."""

    root: Path
    """Folder of that file."""
    defs: Path
    """Folder of the definitions, such as `src/<root_module>/defs`."""


def find_project(start: Path | None = None) -> Project | None:
    """Return the project that contains a folder, if any.

    The nearest one upward wins. `start`: by default the folder in TOKFLOW_PROJECT, or the current
    one.

    Raises: ConfigError if the file cannot be read, or TOKFLOW_PROJECT is in no project.
    """
    named = os.environ.get(PROJECT_VARIABLE) if start is None else None
    start = Path(named or start or "").absolute()
    for folder in (start, *start.parents):
        for path in (folder / "dg.toml", folder / "pyproject.toml"):
            if path.is_file() and (section := _section(path)) is not None:
                root_module, module = section.get("root_module"), section.get("defs_module")
                if not root_module and not module:
                    raise ConfigError(
                        where=f"{path}: dg.project",
                        expected="`root_module`",
                        found="none",
                        remedy="name the project's package",
                    )
                parts = str(module or f"{root_module}.defs").split(".")
                places = [folder.joinpath(of, *parts) for of in ("src", "")]  # none is imported
                there = next((place for place in places if place.is_dir()), places[-1])
                return Project(folder, there)
    if named:
        raise ConfigError(
            where=f"project {named!r}",
            expected="a folder in a project, whose pyproject.toml has `[tool.dg.project]`",
            found="none in it or above" if start.is_dir() else "no folder",
            remedy=f"correct --project or {PROJECT_VARIABLE}",
        )
    return None


def project_root() -> Path:
    """Return the root of the current project; without one the current folder."""
    project = find_project()
    return project.root if project else Path.cwd()


def state_home(root: Path) -> Path:
    """Return the default of DAGSTER_HOME for a project.

    That is the project root if its dagster.yaml says where the state is kept, else `.dagster`.
    """
    import yaml

    settings = root / "dagster.yaml"
    found = yaml.safe_load(settings.read_text()) if settings.is_file() else None
    return root if KEEPS_STATE & (found or {}).keys() else root / ".dagster"


def _section(path: Path) -> dict[str, Any] | None:
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            where=path,
            expected="TOML that can be read",
            found=message_of(error, where=path.name),
            remedy="correct it, for it may say which datasets there are",
        ) from None
    tool = fields if path.name == "dg.toml" else fields.get("tool", {}).get("dg", {})
    section: dict[str, Any] | None = tool.get("project")
    return section

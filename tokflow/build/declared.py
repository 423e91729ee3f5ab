"""The datasets declared in the project: where their YAML files are, and how each is loaded."""

from pathlib import Path

import yaml

from tokflow.build.dataset import Dataset, load_dataset
from tokflow.errors import ConfigError

FOLDER = Path("tokflow/defs")
DECLARATION_NAME = "defs.yaml"

KEEPS_STATE = {"storage", "run_storage", "instance_class"}
"""Keys of a dagster.yaml, one of which says where Dagster keeps its state."""


def project_root() -> Path:
    """Return the project one stands in, where relative paths of declared datasets start.

    It is the nearest folder, from the current one up, that holds `tokflow/defs`; the current
    folder if there is none.
    """
    here = Path.cwd()
    return next((of for of in (here, *here.parents) if (of / FOLDER).is_dir()), here)


def state_home(root: Path) -> Path:
    """Return the folder of a project that is DAGSTER_HOME where the user has set none.

    That is the project root if its dagster.yaml says where the state is kept, else `.dagster`.
    """
    settings = root / "dagster.yaml"
    found = yaml.safe_load(settings.read_text()) if settings.is_file() else None
    return root if KEEPS_STATE & (found or {}).keys() else root / ".dagster"


def list_declared() -> dict[str, Path]:
    """Return the YAML file of each declared dataset by name, sorted; reads none of them.

    A dataset is declared in `tokflow/defs/<name>/defs.yaml` below the project root.
    """
    paths = sorted((project_root() / FOLDER).glob(f"*/{DECLARATION_NAME}"))
    return {path.parent.name: path for path in paths}


def load_declared(name: str, store: Path | None = None) -> Dataset:
    """Return the dataset called `name`; `store` takes the place of the one in its file.

    Raises: ConfigError that lists the datasets if there is none of that name, or what is wrong
    in its file.
    """
    declared = list_declared()
    if name not in declared:
        raise ConfigError(
            where=f"dataset {name!r}",
            expected=f"one of {', '.join(declared) or '(none declared)'}",
            found=f"none of that name in {project_root() / FOLDER}",
            remedy=f"name one of them, declare it in {FOLDER / name / DECLARATION_NAME}, or "
            "go to the folder of its project",
        )
    dataset = load_dataset(declared[name], base=project_root(), store=store)
    if dataset.name != name:
        raise ConfigError(
            where=f"{declared[name]}: name",
            expected=f"the name of its folder, {name!r}",
            found=repr(dataset.name),
            remedy="rename one of them",
        )
    if "__exports__" in f"{name}__":
        raise ConfigError(
            where=f"{declared[name]}: name",
            expected="no '__exports', by which Dagster names the exports of a dataset",
            found=repr(name),
            remedy="rename the dataset and its folder",
        )
    return dataset

"""The datasets declared in the project: where their YAML files are, and how each is loaded."""

from pathlib import Path

import tokflow
from tokflow.dataset import Dataset, load_dataset
from tokflow.errors import ConfigError, four_parts

DECLARATION_NAME = "defs.yaml"


def project_root() -> Path:
    """Return the folder that relative paths of declared datasets start from.

    In a checkout it is the folder that holds `tokflow/`, from wherever it is called; installed
    as a wheel, tokflow belongs to no project, and it is the current folder.
    """
    package = _package()
    is_checkout = (package.parent / "pyproject.toml").is_file()
    return package.parent if is_checkout else Path.cwd()


def list_declared() -> dict[str, Path]:
    """Return the YAML file of each declared dataset by name, sorted; reads none of them.

    A dataset is declared in `tokflow/defs/<name>/defs.yaml` below the project root. What the
    installed package brings along is listed too, unless the project declares the same name.
    """
    folders = (_package() / "defs", project_root() / "tokflow" / "defs")
    found = {
        path.parent.name: path
        for folder in folders
        for path in sorted(folder.glob(f"*/{DECLARATION_NAME}"))
    }
    return dict(sorted(found.items()))


def load_declared(name: str, store: Path | None = None) -> Dataset:
    """Return the dataset called `name`; `store` takes the place of the one in its file.

    Raises: ConfigError that lists the datasets if there is none of that name, or what is wrong
    in its file.
    """
    declared = list_declared()
    if name not in declared:
        raise ConfigError(
            four_parts(
                where=f"dataset {name!r}",
                expected=f"one of {', '.join(declared) or '(none declared)'}",
                found="none of that name",
                remedy=f"name one of them, or declare it in tokflow/defs/{name}/{DECLARATION_NAME}",
            )
        )
    dataset = load_dataset(declared[name], base=project_root(), store=store)
    if dataset.name != name:
        raise ConfigError(
            four_parts(
                where=f"{declared[name]}: name",
                expected=f"the name of its folder, {name!r}",
                found=repr(dataset.name),
                remedy="rename one of them",
            )
        )
    return dataset


def _package() -> Path:
    return Path(tokflow.__file__).parent

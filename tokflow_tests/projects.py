"""Projects of Dagster's with datasets in them."""

from pathlib import Path
from typing import Any

import yaml

from tokflow.cli.options import select
from tokflow.pipeline.dataset import Dataset

PYPROJECT = '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "mine"\n'
DEFS = "mine/defs"
TYPE = "tokflow.components.TextDataset"


def make_project(folder: Path, *, defs: str = DEFS) -> Path:
    """Make a project without datasets; return its folder."""
    (folder / defs).mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    return folder


def declare_in(project: Path, path: str, *datasets: dict[str, Any] | str, defs: str = DEFS) -> Path:
    """Declare datasets in `<defs>/<path>/defs.yaml`, one by its name alone; return the file."""
    documents = [
        {"type": TYPE, "attributes": attributes(of) if isinstance(of, str) else of}
        for of in datasets
    ]
    file = project / defs / path / "defs.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump_all(documents, sort_keys=False))
    return file


def attributes(name: str, **more: Any) -> dict[str, Any]:
    """Return the attributes of a dataset over `data/*.txt`."""
    raw, tokenizer = {"files": "data/*.txt"}, {"kind": "bytes"}
    return {"name": name, "raw": raw, "tokenizer": tokenizer, "store": "store", **more}


def load_declared(name: str, store: Path | None = None) -> Dataset:
    """Return the dataset of the project that one stands in, as commands choose it."""
    [dataset] = select([name], None, store)
    return dataset

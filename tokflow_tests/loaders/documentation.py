"""docs/loaders.md: its code by section, and the datasets that it reads."""

import re
from pathlib import Path
from typing import Any

import pytest

import tokflow
from tokflow_tests.tiny import build, declare

PAGE = (Path(tokflow.__file__).parents[1] / "docs/loaders.md").read_text(encoding="utf-8")
SECTIONS = {
    section.partition("\n")[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for section in PAGE.split("\n## ")[1:]
}
"""The blocks of Python under each heading."""

WITH_NUMPY = ("Rows", "Tokens", "Orders", "Mixtures", "Batches, ranks and resume")


def run_sections(folder: Path, *names: str) -> dict[str, Any]:
    """Return the names that the code of sections leaves, run one after another in a folder with
    the datasets `web` and `code`."""
    for name in ("web", "code"):
        texts = [f"{name} {number} " * (number % 7) for number in range(400)]
        parts = {"train": {"fraction": 0.9}, "validation": {"fraction": 0.1}}
        build(
            declare(
                folder / name,
                {"a.jsonl": texts},
                name=name,
                store=str(folder / "data/store"),
                split={"parts": parts},
                exports=["bin", "parquet"],
            )
        )
    found: dict[str, Any] = {"__name__": "docs"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in names:
            for block in SECTIONS[name]:
                exec(compile(block, f"docs/loaders.md, {name}", "exec"), found)
    return found

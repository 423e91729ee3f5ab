"""The folders of tokflow, whose imports `lint-imports` checks against pyproject.toml."""

import ast
from pathlib import Path

import tokflow

ROOT = Path(tokflow.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))


def private_imports(path: Path) -> list[str]:
    """Return the names with a leading underscore that a module takes from another folder; those of
    Python's own form, as `__version__`, are public."""
    room = path.relative_to(ROOT).parts[0]
    imports = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
    ]
    return [
        f"{node.module}.{alias.name}"
        for node in imports
        for alias in node.names
        if node.module
        and node.module.split(".")[:2] != ["tokflow", room]
        and node.module.startswith("tokflow")
        and any(
            part.startswith("_") and not part.endswith("__")
            for part in f"{node.module}.{alias.name}".split(".")
        )
    ]


def test_nobody_imports_a_private_name_of_another_folder():
    assert {p.relative_to(ROOT): found for p in MODULES if (found := private_imports(p))} == {}

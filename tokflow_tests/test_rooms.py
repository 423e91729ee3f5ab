"""The folders of tokflow, whose imports `lint-imports` checks against pyproject.toml."""

import re
from pathlib import Path

import tokflow

ROOT = Path(tokflow.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))


def private_imports(path: Path) -> list[str]:
    """Return the names with a leading underscore that a module takes from another folder; those of
    Python's own form, as `__version__`, are public."""
    room = path.relative_to(ROOT).parts[0]
    imports = re.findall(
        r"^ *from (tokflow[\w.]*) import (\([^)]*\)|.*)$", path.read_text(), re.MULTILINE
    )
    return [
        f"{module}.{name}"
        for module, names in imports
        if module.split(".")[:2] != ["tokflow", room]
        for name in re.findall(r"\w+", names)
        if any(
            part.startswith("_") and not part.endswith("__")
            for part in f"{module}.{name}".split(".")
        )
    ]


def test_nobody_imports_a_private_name_of_another_folder():
    assert {p.relative_to(ROOT): found for p in MODULES if (found := private_imports(p))} == {}

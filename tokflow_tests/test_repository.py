"""The versions that are tested, and the folders of tokflow, whose imports `lint-imports` checks."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def test_the_tested_versions_are_ones_that_the_project_allows():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    names = ("on_ray", "clouds")
    files = [ROOT / "tokflow_tests" / name / "requirements.txt" for name in names]
    lines = [
        line
        for file in (ROOT / "constraints.txt", *files)
        for line in file.read_text().splitlines()
    ]
    pins = [re.fullmatch(r"([^#]+)==(.+)", line) for line in lines]
    tested = {canonicalize_name(pin[1]): pin[2] for pin in pins if pin}
    wanted = [
        *project["project"]["dependencies"],
        *(requirement for extra in extras.values() for requirement in extra),
        *project["dependency-groups"]["dev"],
    ]

    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        if name != project["project"]["name"]:  # else it names extras
            assert requirement.specifier.contains(tested[name]), requirement


def test_the_extra_all_has_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    [everything] = extras.pop("all")

    assert Requirement(everything).extras == extras.keys()


ROOMS = ROOT / "tokflow"
MODULES = sorted(ROOMS.rglob("*.py"))


def private_imports(path: Path) -> list[str]:
    """Return the names with a leading underscore that a module takes from another folder; those of
    Python's own form, as `__version__`, are public."""
    room = path.relative_to(ROOMS).parts[0]
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
    assert {p.relative_to(ROOMS): found for p in MODULES if (found := private_imports(p))} == {}

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def test_the_tested_versions_are_ones_that_the_project_allows():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [re.fullmatch(r"(.+)==(.+)", line) for line in lines if not line.startswith("#")]
    tested = {canonicalize_name(pin[1]): pin[2] for pin in pins}
    wanted = [
        *project["project"]["dependencies"],
        *(requirement for extra in extras.values() for requirement in extra),
        *project["dependency-groups"]["dev"][1:],  # the first is the project with its extras
    ]

    for requirement in map(Requirement, wanted):
        version = tested[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), requirement

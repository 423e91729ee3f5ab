"""One history, from whichever folder a command is given."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from tokflow_tests.projects import declare_in, make_project
from tokflow_tests.tiny import SMALL, TEXTS, write_raw

ROOT = Path(__file__).parents[2]

DEFINITIONS = """
from pathlib import Path
import dagster as dg

@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


def told(*command: str, folder: Path, **variables: Path) -> str:
    """Return what a command prints, of which every one succeeds."""
    known = {key: of for key, of in os.environ.items() if key not in ("DAGSTER_HOME",)}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=known | {name: str(of) for name, of in variables.items()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_with_dagster_home_every_folder_has_the_history_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = make_project(tmp_path / "project")
    write_raw(project, TEXTS)
    declare_in(project, "small-b", {**SMALL, "name": "small-b", "exports": ["bin"]})
    (project / "mine/definitions.py").write_text(DEFINITIONS)
    shutil.copy(ROOT / "dagster.yaml", project)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    home = {"DAGSTER_HOME": project, "PYTHONPATH": Path(f"{ROOT}:{project}")}
    location = ("-m", "mine.definitions", "-d", str(project))

    first = told("tokflow", "run", "small-b", folder=project)
    named = told("tokflow", "run", "--project", str(project), "small-b", folder=elsewhere, **home)
    job = ("dagster", "job", "execute", *location, "-j", "small_b_build")
    executed = told(*job, folder=elsewhere, **home)

    assert "8 outputs new" in first
    assert "small-b: nothing to do" in named
    assert "0 outputs new, 8 up to date, 0 recorded" in executed
    assert list(elsewhere.iterdir()) == []
    monkeypatch.setenv("DAGSTER_HOME", str(project))
    with dg.DagsterInstance.get() as instance:
        assert [run.job_name for run in instance.get_runs()] == ["small_b_build"] * 2

"""Loaders with torch, torchdata, torchtitan, Grain and JAX: the tests of `loaders/`, each module
run by the pytest of an environment that has them and tokflow."""

import os
import subprocess
from pathlib import Path

import pytest

from tokflow_tests.interop.harness import python_of

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]
MODULES = sorted((Path(__file__).parent / "loaders").glob("test_*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_loaders_do_what_they_say_with_their_peers(module: Path):
    python = python_of("loaders")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    done = subprocess.run(
        [python, "-P", "-m", "pytest", "--quiet", "-p", "no:cacheprovider", module],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr

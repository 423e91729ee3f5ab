"""Tests in a browser: `make test-ui` runs them in an environment that has playwright. Where it is
not, as in `.venv`, pytest passes them by."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tokflow_tests.ui.browser import Visit, chromium, visiting
from tokflow_tests.ui.project import make_project, run_tokflow

if TYPE_CHECKING:
    from playwright.sync_api import Browser

collect_ignore_glob = [] if find_spec("playwright") else ["test_*.py"]


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    with chromium() as browser:
        yield browser


@pytest.fixture
def visit(browser: "Browser") -> Iterator[Visit]:
    """A window that asks this machine alone, or the test fails."""
    with visiting(browser) as visit:
        yield visit
    assert visit.hosts() <= {"127.0.0.1"}


@pytest.fixture(scope="session")
def built_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose dataset is built by the command line."""
    project = make_project(tmp_path_factory.mktemp("built"))
    run_tokflow("run", "demo", folder=project)
    return project

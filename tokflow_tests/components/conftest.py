from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from tokflow.components import decisions
from tokflow_tests.dagster_case import KEYS, Case


@pytest.fixture(scope="module", autouse=True)
def _files_are_complete() -> Iterator[None]:
    """Let the sensor take a file that has just been written for a whole one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decisions, "CALM_SECONDS", 0.0)
        yield


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    """A dataset of which Dagster has no partitions yet."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield Case(tmp_path, instance)


@pytest.fixture
def _registered(case: Case) -> None:
    case.instance.add_dynamic_partitions("small_files", KEYS)


@pytest.fixture(scope="session")
def built_by(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Case, dg.ExecuteInProcessResult]]:
    """A dataset that one run has built, here of the build job, and that run."""
    with dg.DagsterInstance.ephemeral() as instance:
        case = Case(tmp_path_factory.mktemp("built"), instance)
        yield case, case.job()


@pytest.fixture(scope="module")
def built(built_by: tuple[Case, dg.ExecuteInProcessResult]) -> Case:
    """A dataset that one run has built; nobody changes its files."""
    return built_by[0]


@pytest.fixture
def _built(case: Case, built: Case) -> None:
    """Let `case` be built as `built`; its checks are computed again, for the files are copies."""
    case.become(built)

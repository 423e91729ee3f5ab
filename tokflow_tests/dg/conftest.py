import pytest

from tokflow_tests.dg.harness import Place, install_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A folder for projects, in an environment that has tokflow as a wheel."""
    return install_wheel(tmp_path_factory.mktemp("dg"))

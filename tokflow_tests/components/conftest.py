from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from tokflow_tests.dagster_case import Case


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    """A dataset of which Dagster has no partitions yet."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield Case(tmp_path, instance)

"""Tests on a cluster of Ray: `make test-ray` runs them in an environment that has it. Where there
is no Ray, as in `.venv`, pytest passes them by."""

import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tokflow_tests.object_store import ObjectStore

collect_ignore_glob = [] if find_spec("ray") else ["test_*.py"]

ROOT = Path(__file__).parents[2]


class Nodes:
    """A cluster whose head does no tasks, and whose nodes have a core and a cache each."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        from ray.cluster_utils import Cluster

        self.folder = folder
        self._environment = {**environment, "PYTHONPATH": str(ROOT)}
        of_all: dict[str, Any] = {"object_store_memory": 80_000_000}
        head = {"num_cpus": 0, "include_dashboard": False, **of_all}
        self._of_node = {"num_cpus": 1, **of_all}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: list[tuple[Any, Path]] = []

    @property
    def caches(self) -> list[Path]:
        """Those of the nodes that live."""
        return [cache for _, cache in self._nodes]

    def add(self) -> None:
        cache = Path(tempfile.mkdtemp(prefix="cache-", dir=self.folder))
        variables = {**self._environment, "TOKFLOW_CACHE": str(cache)}
        self._nodes.append((self.cluster.add_node(env_vars=variables, **self._of_node), cache))

    def kill(self) -> None:
        """Kill a node with all its processes, as when its machine is gone."""
        self.cluster.remove_node(self._nodes.pop()[0], allow_graceful=False)

    def set_number(self, number: int) -> None:
        while len(self._nodes) < number:
            self.add()
        while len(self._nodes) > number:
            self.kill()


@pytest.fixture(scope="session")
def _nodes(object_server: ObjectStore) -> Iterator[Nodes]:
    folder = Path(tempfile.mkdtemp(prefix="on_ray-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else a warning
        nodes = Nodes(folder, object_server.environment())
        try:
            yield nodes
        finally:
            nodes.cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def nodes(_nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Two nodes of a cluster that RAY_ADDRESS names."""
    monkeypatch.setenv("RAY_ADDRESS", _nodes.cluster.address)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    _nodes.set_number(2)
    return _nodes

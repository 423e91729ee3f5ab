"""Machines that build the same dataset at the same time leave what one alone leaves."""

import multiprocessing
import os
from pathlib import Path

from tokflow.store import request_errors
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.tiny import TEXTS, build, declare_small, write_raw

NUM_MACHINES = 2


def _build(
    folder: Path, store: str, environment: dict[str, str], machine: int, together: object
) -> None:
    os.environ.update(environment, TOKFLOW_CACHE=str(folder / f"cache-{machine}"))
    request_errors.FIRST_WAIT_SECONDS = 0.001
    dataset = declare_small(folder / str(machine), store=store)
    together.wait()  # type: ignore[attr-defined]
    build(dataset)


def test_machines_at_once_whose_requests_fail(tmp_path: Path, object_store: ObjectStore) -> None:
    for machine in range(NUM_MACHINES + 1):
        write_raw(tmp_path / str(machine), TEXTS)
    build(declare_small(tmp_path / str(NUM_MACHINES), store=f"{object_store.url}/store"))
    expected = _contents(object_store)
    store = object_store.with_new_bucket()
    store.fail("reset", "PUT", times=None, chance=0.05)
    store.fail("409", "PUT", times=None, chance=0.05)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tokflow_tests.tiny"])
    together = context.Barrier(NUM_MACHINES)
    given = tmp_path, f"{store.url}/store", store.environment()
    machines = [
        context.Process(target=_build, args=(*given, machine, together))
        for machine in range(NUM_MACHINES)
    ]
    for machine in machines:
        machine.start()
    for machine in machines:
        machine.join(60)

    assert [machine.exitcode for machine in machines] == [0] * NUM_MACHINES
    assert _contents(store) == expected


def _contents(store: ObjectStore) -> dict[str, bytes]:
    """Return the objects but for the runs' logs."""
    return {
        key: data for key, data in store.contents().items() if not key.endswith("_tokflow/run.json")
    }

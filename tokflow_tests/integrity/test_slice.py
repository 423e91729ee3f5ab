"""A thin slice of the net, for every run of the tests: one kind of file, one of each fault."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tokflow.audit.verify import verify_dataset, verify_path
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import build_dataset
from tokflow_tests.integrity.store import FAULTS
from tokflow_tests.tiny import copy_of, declare_small

FIELDS = {"exports": ["bin"], "raw": {"files": "raw/a.jsonl"}}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    assert build_dataset(declare_small(folder, **FIELDS)).failed == ()
    return folder


def add_a_file(path: Path) -> None:
    path.with_name("more").write_bytes(b"")


@pytest.mark.parametrize("name", ["_tokflow/manifest.json", "tokens.bin"])
@pytest.mark.parametrize("fault", [*FAULTS.values(), add_a_file], ids=[*FAULTS, "one file more"])
def test_a_fault_is_found_by_the_output_the_store_and_the_dataset(
    fault: Callable[[Path], None], name: str, small: Path, tmp_path: Path
):
    made = declare_small(copy_of(small, tmp_path), **FIELDS)
    output = graph_of(made).tokens("a.jsonl").folder
    fault(output / name)

    for found in (verify_path(output), verify_path(made.store.root), verify_dataset(made)):
        assert {each.folder for each in found if each.problems} == {output}

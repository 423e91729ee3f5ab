"""An index of manifests spares a plan of many files their reading, and hides nothing."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.output import Output
from tokflow.pipeline.plan import Plan, make_plan
from tokflow.pipeline.run import build_dataset
from tokflow.store.manifest import MANIFEST_NAME, read_manifest
from tokflow.store.remembered import LEAST_OUTPUTS
from tokflow_tests.integrity.store import FAULTS
from tokflow_tests.tiny import declare_small, write_raw

INDEX = "store/small/manifests-tokens.index"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    write_raw(folder, {f"{number:03}.jsonl": [f"text {number}"] for number in range(LEAST_OUTPUTS)})
    assert build_dataset(declared(folder)).failed == ()
    return folder


@pytest.fixture
def copy(many: Path, tmp_path: Path) -> Path:
    """A copy, whose index is of the files of the copy."""
    folder = Path(shutil.copytree(many, tmp_path / "many", symlinks=True))
    plan_of(folder)
    return folder


def declared(folder: Path, **fields: Any) -> Dataset:
    return declare_small(folder, exports=["bin"], **fields)


def plan_of(folder: Path, **fields: Any) -> Plan:
    return make_plan(declared(folder, **fields))


def known(plan: Plan) -> list[str]:
    """Return the outputs that the next plan knows by the index."""
    graph = graph_of(plan.graph.dataset, offline=True)
    graph.read_raw_files(list(graph.partitions))
    return [output.title for output in graph.outputs() if is_known(output)]


def is_known(output: Output) -> bool:
    return output.known is not None and output.known == read_manifest(output.folder)


@pytest.fixture
def read(copy: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The outputs, by their places, whose manifests are read from now on."""
    found = list[str]()

    def noted(folder: Path, *more: Any) -> Any:
        found.append(folder.parent.relative_to(copy / "store/small").as_posix())
        return read_manifest(folder, *more)

    monkeypatch.setattr("tokflow.store.store.read_manifest", noted)
    return found


def test_a_plan_of_many_built_files_reads_no_manifest_of_them(copy: Path, read: list[str]):
    plan = plan_of(copy)

    assert plan.is_up_to_date
    assert {*read} == {"tokenizer", "exports/bin"}
    assert len(known(plan)) == 2 * LEAST_OUTPUTS


@pytest.mark.parametrize("name", [MANIFEST_NAME, "tokens.bin"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_output_is_found_as_without_an_index(fault: str, name: str, copy: Path):
    [folder] = (copy / "store/small/tokens/007.jsonl").iterdir()
    (copy / INDEX).rename(aside := copy / "index")
    FAULTS[fault](folder / name)
    without = [(of.output.title, of.reason) for of in plan_of(copy).missing]
    aside.replace(copy / INDEX)

    found = [(of.output.title, of.reason) for of in plan_of(copy).missing]

    assert found == without
    if name == MANIFEST_NAME or fault != "a flipped bit":
        assert "tokens of 007.jsonl" in dict(found)


def cut_anywhere(index: Path, choose: random.Random) -> None:
    data = index.read_bytes()
    index.write_bytes(data[: choose.randrange(len(data))])


def flip_anywhere(index: Path, choose: random.Random) -> None:
    data = bytearray(index.read_bytes())
    for _ in range(200):
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
    index.write_bytes(data)


def empty_a_block(index: Path, choose: random.Random) -> None:
    """As a file system does with what was not on the disk when the power failed."""
    data = index.read_bytes()
    start = choose.randrange(len(data) - 4096)
    index.write_bytes(data[:start] + bytes(4096) + data[start + 4096 :])


def remove(index: Path, choose: random.Random) -> None:
    index.unlink()


@pytest.mark.parametrize("spoil", [cut_anywhere, flip_anywhere, empty_a_block, remove])
@pytest.mark.parametrize("seed", [1])
def test_an_index_that_is_torn_or_damaged_is_made_again_and_changes_nothing(
    spoil: Callable[[Path, random.Random], None], seed: int, copy: Path
):
    before = plan_of(copy)
    spoil(copy / INDEX, random.Random(seed))

    after = plan_of(copy)

    assert [(of.output.title, of.cause, of.fingerprint) for of in after.planned] == [
        (of.output.title, of.cause, of.fingerprint) for of in before.planned
    ]
    assert after.totals.tokens == before.totals.tokens
    assert len(known(after)) == 2 * LEAST_OUTPUTS


def test_an_older_index_hides_no_change_and_is_brought_up_to_date(copy: Path):
    older = (copy / INDEX).read_bytes()
    write_raw(copy, {"007.jsonl": ["another text"], "new.jsonl": ["a new one"]})
    built = build_dataset(declared(copy))
    (copy / INDEX).write_bytes(older)

    plan = plan_of(copy)

    assert built.num_new == 2 + 2 + 1
    assert plan.is_up_to_date
    assert len(known(plan)) == 2 * LEAST_OUTPUTS + 2


def test_lines_of_outputs_that_were_made_again_do_not_pile_up(
    copy: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.store.remembered.DEAD_LINES", 0)
    for number in range(4):
        for manifest in (copy / "store/small/tokens").rglob(MANIFEST_NAME):
            manifest.write_bytes(manifest.read_bytes())
        plan = plan_of(copy)
        assert plan.is_up_to_date, number

    lines = [*filter(None, (copy / INDEX).read_bytes().split(b"\n"))]
    assert LEAST_OUTPUTS <= len(lines) <= 2 * LEAST_OUTPUTS
    assert len(known(plan)) == 2 * LEAST_OUTPUTS


def test_outputs_of_files_that_are_gone_leave_the_index_with_the_next_plan(copy: Path):
    write_raw(copy, {"new.jsonl": ["a new one"]})
    plan_of(copy)
    assert build_dataset(declared(copy)).failed == ()
    (copy / "raw/new.jsonl").unlink()

    plan = plan_of(copy)

    index = (copy / INDEX).read_bytes()
    assert len([*filter(None, index.split(b"\n"))]) == LEAST_OUTPUTS
    assert len(known(plan)) == 2 * LEAST_OUTPUTS

"""The mirror of a URL on this disk: what another machine has made, pointed to, or removed since."""

import itertools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokflow.errors import CorruptOutputError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.gc import find_garbage, remove_all
from tokflow.pipeline.plan import make_plan
from tokflow.store.engine_verdicts import read_verdict
from tokflow.store.manifest import is_complete
from tokflow_tests.disks import flip, full_disk
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.tiny import build, declare

BELOW = "store/small/tokens/../../../../0123456789abcdef/0123456789abcdef/x"


def _declared(folder: Path, store: str) -> Dataset:
    files = {"a.jsonl": ["one", "two"], "sub/b.jsonl": ["three"]}
    raw = {"files": "raw/**/*.jsonl"}
    return declare(folder, files, name="small", raw=raw, exports=["bin"], store=store)


class Machines:
    """Machines with caches of their own, one after another."""

    def __init__(self, folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._url, self._monkeypatch = folder, url, monkeypatch

    def on(self, name: str) -> Dataset:
        """Go to a machine; return the dataset as it is declared there."""
        self._monkeypatch.setenv("TOKFLOW_CACHE", str(self._folder / name))
        return _declared(self._folder, f"{self._url}/store")


@pytest.fixture
def machines(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> Machines:
    return Machines(tmp_path, object_store.url, monkeypatch)


def _latest(dataset: Dataset) -> Path:
    return dataset.folder / "exports" / "bin" / "latest"


def test_what_is_known_is_not_asked_for_again_nor_what_this_machine_has_made(
    machines: Machines, object_store: ObjectStore
) -> None:
    dataset = machines.on("a")
    build(dataset)
    with object_store.counted() as count:
        dataset.store.refresh(dataset.folder)
        dataset.store.refresh(dataset.folder)
    assert not count["GET"]


def test_what_another_machine_removed_goes_and_what_it_wrote_comes(machines: Machines) -> None:
    here = machines.on("a")
    build(here)
    tokens, *_ = here.folder.glob("tokens/**/_tokflow/manifest.json")
    export = _latest(here).resolve()
    there = machines.on("b")
    there.store.refresh(there.folder)
    other = there.folder / tokens.parents[1].relative_to(here.folder)
    verdict = b'{"difference": "wrong"}'
    there.store.write_beside(there.folder / ".verdicts" / f"{'f' * 16}.json", verdict)
    there.store.remove_all([other], seconds=0)
    there.store.point_latest(there.folder / "exports" / "bin" / "0123456789abcdef")
    here = machines.on("a")
    here.store.refresh(here.folder)
    assert not tokens.parents[2].exists()
    assert is_complete(export)
    assert _latest(here).readlink().name == "0123456789abcdef"
    assert read_verdict(here.folder / "tokenizer" / "x", "f" * 64) == "wrong"


def test_what_two_processes_find_removed_at_once_goes(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = machines.on("a")
    build(dataset)
    tokens, *_ = dataset.folder.glob("tokens/**/_tokflow/manifest.json")
    dataset.store.remove_all([tokens.parents[1]], seconds=0)
    names = Path.iterdir

    def names_of_removed(folder: Path) -> Iterator[Path]:
        if folder == tokens.parents[1]:
            shutil.rmtree(folder)
        return names(folder)

    monkeypatch.setattr(Path, "iterdir", names_of_removed)
    dataset.store.refresh(dataset.folder)
    assert not tokens.parents[1].exists()


def test_what_is_not_finished_is_not_taken_for_removed(machines: Machines) -> None:
    dataset = machines.on("a")
    build(dataset)
    made = _latest(dataset).resolve()
    unfinished = made.with_name(f".{made.name}.aaaaaaaa.1.bbbbbbbb.tmp")
    shutil.copytree(made, unfinished)
    dataset.store.refresh(dataset.folder)
    assert is_complete(unfinished)


def test_keys_of_anybody_else_write_nothing_on_this_disk_and_remove_nothing(
    tmp_path: Path, machines: Machines, object_store: ObjectStore
) -> None:
    dataset = machines.on("a")
    build(dataset)
    tree = sorted((tmp_path / "a").rglob("*"))
    (tmp_path / "mine").write_text("mine")
    out = os.path.relpath(tmp_path / "mine", dataset.folder)
    for name in (
        out, f"{tmp_path}/mine", f"exports/{out}/latest",
        "exports/bin/latest/0123456789abcdef.json",
        "./tokens/0123456789abcdef.json", "notes.txt", "0123456789abcdef.json",
        ".notes/0123456789abcdef.json",
        "tokens//0123456789abcdef.json", f"tokens/{'x' * 256}/0123456789abcdef.json",
        "tokens/a\\b/0123456789abcdef.json", ".verdicts/../../x.json",
        "tokens/0123456789abcdef/_tokflow/manifest.json/0123456789abcdef.json",
    ):  # fmt: skip
        object_store.put(f"store/small/manifests/{name}", b"other")
    for key in (
        "store//manifests/tokens/x",
        "store/../manifests/tokens/x",
        "store/.verdicts/../x",
        BELOW,
    ):
        object_store.put(key, b"other")
    dataset.store.refresh(dataset.folder.parent)
    assert dataset.store.unfinished(dataset.folder, seconds=-5) == {}
    assert (tmp_path / "mine").read_text() == "mine"
    assert sorted((tmp_path / "a").rglob("*")) == tree
    assert make_plan(machines.on("b")).is_up_to_date


def test_a_link_that_is_no_name_of_an_output_is_put_right_by_a_run(
    machines: Machines, object_store: ObjectStore
) -> None:
    build(machines.on("a"))
    links = {key: of for key, of in object_store.contents().items() if key.endswith("latest")}
    bad = itertools.cycle([b"\xff", b"../../../other", b""])
    for machine in ("a", "b"):
        for key in links:
            object_store.put(key, next(bad))
        there = machines.on(machine)
        there.store.refresh(there.folder)
        assert not [*there.folder.glob("exports/*/latest")]
        assert not build(there).failed
        assert links.items() <= object_store.contents().items()


def test_a_link_that_is_set_twice_in_a_second_leads_where_it_was_set_last(
    machines: Machines, object_store: ObjectStore
) -> None:
    dataset = machines.on("a")
    link = _latest(dataset)
    time.sleep(1 - time.time() % 1)
    for name in ("0" * 16, "1" * 16):
        object_store.put("store/small/manifests/exports/bin/latest", name.encode())
        dataset.store.refresh(link.parents[2])
        assert link.readlink().name == name
    with object_store.counted() as count:
        dataset.store.refresh(link.parents[2])
    assert not count["GET"]


def test_damage_that_another_machine_has_mended_is_forgotten(
    machines: Machines, object_store: ObjectStore
) -> None:
    build(machines.on("a"))
    fault = object_store.fail("flip", "GET", "*tokens.bin", times=None)
    for machine in ("b", "c"):
        there = machines.on(machine)
        there.store.refresh(there.folder)
        tokens, *_ = there.folder.glob("tokens/**/_tokflow/manifest.json")
        with pytest.raises(CorruptOutputError):
            there.store.read(tokens.parents[1]).file("tokens.bin")
        assert not make_plan(there).is_up_to_date
    os.utime(tokens.with_name(".damaged"), (1, 1))
    object_store.faults.remove(fault)
    time.sleep(1 - time.time() % 1)
    build(machines.on("b"))
    assert make_plan(machines.on("c")).is_up_to_date


def test_a_damaged_copy_of_a_manifest_tells_nothing_of_the_url_and_comes_again(
    machines: Machines, object_store: ObjectStore
) -> None:
    dataset = machines.on("a")
    build(dataset)
    dataset.store.refresh(dataset.folder)
    expected = object_store.contents()
    for path in dataset.folder.rglob("_tokflow/manifest.json"):
        flip(path)
    remove_all(dataset.store, find_garbage(dataset, keep=0))
    assert object_store.contents() == expected
    assert make_plan(dataset).is_up_to_date


def test_a_full_disk_is_told_of_and_leaves_no_half_of_a_file(machines: Machines) -> None:
    build(machines.on("a"))
    there = machines.on("b")
    with pytest.raises(OSError, match="too large"), full_disk(10):
        there.store.refresh(there.folder)
    assert not [*there.folder.rglob("_tokflow/manifest.json")]
    there.store.refresh(there.folder)
    tokens = next(there.folder.glob("tokens/**/_tokflow/manifest.json")).parents[1] / "tokens.bin"
    with pytest.raises(OSError, match="too large") as error, full_disk(10):
        there.store.read(tokens.parent).file("tokens.bin")
    assert not tokens.exists()
    assert type(error.value) is OSError


def test_the_state_of_many_files_is_two_listings(
    machines: Machines, object_store: ObjectStore
) -> None:
    build(machines.on("a"))
    machines.on("b")
    with object_store.counted() as empty:
        assert make_plan(machines.on("b")).is_up_to_date
    with object_store.counted() as known:
        assert make_plan(machines.on("b")).is_up_to_date
    assert empty["LIST"] == 2
    assert known == {"LIST": 2}

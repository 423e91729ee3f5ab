"""Packs: a machine with an empty cache gets many manifests by few requests."""

import shutil
from pathlib import Path

import pytest

from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.plan import make_plan
from tokflow.store.remote import mirror, packs
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import place_of
from tokflow_tests.tiny import build, declare


@pytest.fixture
def packed(tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A dataset of 8 files, whose manifests are in a pack, and nothing of it on this disk."""
    monkeypatch.setattr(mirror, "MANY", 10)
    monkeypatch.setattr(packs, "MANY", 10)
    monkeypatch.setattr(packs, "SETTLED_NS", -(10**9))  # of this second, too
    files = {f"{number}.jsonl": [f"text {number}"] for number in range(8)}
    dataset = declare(tmp_path, files, store=f"{object_store.url}/store")
    assert not build(dataset).failed
    shutil.rmtree(dataset.folder)
    return dataset


def test_the_state_of_many_files_costs_few_requests_also_where_the_cache_is_empty(
    packed: Dataset, object_store: ObjectStore
) -> None:
    with object_store.counted() as empty:
        assert make_plan(packed).is_up_to_date
    with object_store.counted() as warm:
        assert make_plan(packed).is_up_to_date
    assert empty["GET"] == 1  # the pack, of 25 manifests
    assert empty["LIST"] <= 8
    assert warm == {"LIST": 2}


def test_what_is_in_no_pack_or_another_now_is_asked_for_by_itself(
    packed: Dataset, object_store: ObjectStore
) -> None:
    packed.store.refresh(packed.folder)
    some, other, *_ = sorted(packed.folder.glob("tokens/**/_tokflow/manifest.json"))
    place = place_of(some)
    assert place is not None
    changed = some.read_bytes().replace(b"tiny", b"tinY")
    place.objects.put(place.manifest_key(some.parents[1]), changed)
    place.objects.remove([place.manifest_key(other.parents[1])])
    shutil.rmtree(packed.folder)
    packed.store.refresh(packed.folder)
    assert some.read_bytes() == changed
    assert not other.exists()


def test_a_damaged_pack_costs_requests_and_nothing_else_and_one_is_enough(
    packed: Dataset, object_store: ObjectStore
) -> None:
    object_store.fail("flip", "GET", "*/packs/*", times=None)
    assert make_plan(packed).is_up_to_date
    packed.store.pack_manifests(packed.folder)
    assert sum("/packs/" in key for key in object_store.keys()) == 1  # noqa: SIM118

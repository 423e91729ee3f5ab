"""Tasks and results that go to another machine, whose folders are others."""

import pickle
from pathlib import Path

import pytest

from tokflow.pools.pool import packed_for_machines
from tokflow.store.remote.places import place_at


def test_a_path_of_a_url_is_one_in_the_cache_of_who_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TOKFLOW_CACHE", str(tmp_path / "here"))
    root = place_at("s3://bucket/store").root
    packed = packed_for_machines([root, root / "a" / "_tokflow/manifest.json", tmp_path / "local"])
    monkeypatch.setenv("TOKFLOW_CACHE", str(tmp_path / "there"))

    opened = pickle.loads(packed)

    there = tmp_path / "there" / root.name
    assert opened == [there, there / "a" / "_tokflow/manifest.json", tmp_path / "local"]
    assert str(tmp_path / "here").encode() not in packed

"""Objects of finished outputs that somebody removed, or cut short, at the bucket."""

from pathlib import Path

import pytest

from tokflow.errors import CorruptOutputError
from tokflow.store.remote.objects import Objects
from tokflow.store.remote.places import folder_of
from tokflow_tests.cli.commands import run
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import fetched
from tokflow_tests.tiny import TEXTS, write_raw, write_yaml


def test_recheck_makes_again_what_lacks_an_object_on_any_machine(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_raw(tmp_path, TEXTS)
    store = f"{object_store.url}/store"
    config = ("--config", write_yaml(tmp_path, store=store))
    assert run("run", *config).exit_code == 0
    objects = Objects(store)
    keys = [entry.key for entry in objects.listed("small")]
    removed, *_ = [key for key in keys if key.endswith("tokens.bin")]
    cut, *_ = [key for key in keys if key.endswith("train.bin")]
    before = {key: objects.read(key) for key in (removed, cut)}
    objects.remove([removed])
    objects.put(cut, b"less")
    cached = folder_of(store) / Path(removed).parent.parent / "tokens.bin"
    cached.unlink()
    with pytest.raises(CorruptOutputError, match="found none; run `tokflow run small --recheck`,"):
        fetched(cached)
    monkeypatch.setenv("TOKFLOW_CACHE", str(tmp_path / "another"))
    assert "nothing to do" in run("run", *config).output

    with object_store.counted() as count:
        result = run("run", *config, "--recheck", "--json")

    assert result.exit_code == 0, result.output
    assert '"num_new": 2' in result.output
    assert {key: objects.read(key) for key in before} == before
    assert count["LIST"] < 12
    assert "nothing to do" in run("run", *config, "--recheck").output

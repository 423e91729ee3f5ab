"""Verification of a store at a URL looks at what is there, whatever is in the cache."""

from pathlib import Path

import pytest

from tokflow.errors import CorruptOutputError
from tokflow.store.remote import objects_at, place_at
from tokflow.store.stored_outputs import find_output
from tokflow_tests.cli.commands import run
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import fetched, problems_at
from tokflow_tests.tiny import build, declare_small, write_raw, write_yaml


def test_damage_is_found_at_the_url_and_not_in_the_cache(tmp_path: Path, object_store: ObjectStore):
    url = f"{object_store.url}/store/small/exports/bin"
    build(declare_small(tmp_path, store=f"{object_store.url}/store", exports=["bin"]))
    [path] = (tmp_path / "cache").rglob("train.bin")
    objects, keys = objects_at(object_store.url), object_store.keys()
    [key] = [key for key in keys if "/exports/bin/" in key and key.endswith("/train.bin")]

    path.write_bytes(b"x" * 144)
    assert problems_at(url) == []
    assert path.read_bytes() != b"x" * 144

    objects.put(key, b"x" * 144)
    [problem] = problems_at(url)
    assert problem.startswith(f"{url}/")
    assert "/train.bin: expected " in problem

    objects.remove([key])
    objects.put(f"{key}.bak", b"")
    missing, unlisted = problems_at(url)
    assert "/train.bin: expected " in missing
    assert unlisted == (
        f"{object_store.url}/{key}.bak: expected no object, found one that the manifest does not "
        "list; remove it"
    )

    export = find_output(url)
    [of_manifest] = [key for key in keys if "/manifests/exports/" in key and key.endswith("json")]
    objects.put(of_manifest, b"{}")
    [[problem]] = export.store.problems([export])
    assert "expected the manifest listed before, sha256" in str(problem)
    objects.remove(object_store.keys())
    [[problem]] = export.store.problems([export])
    assert str(problem).endswith(
        "found none; run `tokflow run`, which makes it again if it is needed, or `tokflow gc`"
    )


def test_recheck_makes_again_what_lacks_an_object_on_any_machine(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_raw(tmp_path, {"a.jsonl": ["one", "two"]})
    store = f"{object_store.url}/store"
    config = ("--config", write_yaml(tmp_path, store=store, exports=["bin"]))
    assert run("run", *config).exit_code == 0
    objects = objects_at(store)
    keys = [entry.key for entry in objects.listed("small")]
    removed, *_ = [key for key in keys if key.endswith("tokens.bin")]
    cut, *_ = [key for key in keys if key.endswith("train.bin")]
    before = {key: objects.read(key) for key in (removed, cut)}
    objects.remove([removed])
    objects.put(cut, b"less")
    cached = place_at(store).root / Path(removed).parent.parent / "tokens.bin"
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

"""Verification of a store at a URL looks at what is there, whatever is in the cache."""

from pathlib import Path

import pytest

from tokflow.audit.verify.verification import verify_path
from tokflow.errors import CorruptOutputError
from tokflow.store.remote.places import objects_at, place_at
from tokflow.store.stored_outputs import find_output
from tokflow_tests.cli.commands import run
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import fetched
from tokflow_tests.tiny import TEXTS, build, declare_small, write_raw, write_yaml


@pytest.fixture
def store(tmp_path: Path, object_store: ObjectStore) -> ObjectStore:
    """A bucket with an export that is on this disk, too."""
    build(declare_small(tmp_path, store=f"{object_store.url}/store", exports=["bin"]))
    return object_store


def _problems(store: ObjectStore) -> list[str]:
    [verified] = verify_path(f"{store.url}/store/small/exports/bin")
    return [*verified.problems]


def _key(store: ObjectStore, end: str) -> str:
    keys = store.keys()
    [key] = [key for key in keys if "/exports/bin/" in key and key.endswith(end)]
    return key


def test_damage_in_the_cache_is_none_and_at_the_url_it_is_found(store: ObjectStore, tmp_path: Path):
    [path] = (tmp_path / "cache").rglob("train.bin")
    path.write_bytes(b"x" * 144)
    assert _problems(store) == []
    assert path.read_bytes() != b"x" * 144
    objects_at(store.url).put(_key(store, "/train.bin"), b"x" * 144)

    [problem] = _problems(store)

    assert problem.startswith(f"{store.url}/store/small/exports/bin/")
    assert "/train.bin: expected " in problem


def test_an_object_that_is_gone_or_that_nobody_listed_is_found(store: ObjectStore):
    objects, key = objects_at(store.url), _key(store, "/train.bin")
    objects.remove([key])
    objects.put(f"{key}.bak", b"")

    missing, unlisted = _problems(store)

    assert "/train.bin: expected " in missing
    assert unlisted == (
        f"{store.url}/{key}.bak: expected no object, found one that the manifest does not list; "
        "remove it"
    )


def test_a_manifest_that_is_another_or_gone_since_it_was_listed_is_found(store: ObjectStore):
    export = find_output(f"{store.url}/store/small/exports/bin")
    keys = store.keys()
    [key] = [key for key in keys if "/manifests/exports/" in key and key.endswith("json")]
    objects_at(store.url).put(key, b"{}")

    [[problem]] = export.store.problems([export])

    assert "expected the manifest listed before, sha256" in str(problem)
    objects_at(store.url).remove(store.keys())
    [[problem]] = export.store.problems([export])
    assert str(problem).endswith(
        "found none; run `tokflow run`, which makes it again if it is needed, or `tokflow gc`"
    )


def test_recheck_makes_again_what_lacks_an_object_on_any_machine(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_raw(tmp_path, TEXTS)
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

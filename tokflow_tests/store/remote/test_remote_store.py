"""URLs as people write them, and the paths that stand for them."""

import pickle
from pathlib import Path

import pytest

from tokflow.errors import ConfigError, MissingOutputError
from tokflow.pipeline.plan import make_plan
from tokflow.store.remote import objects_at
from tokflow.store.requests import RemoteStoreError
from tokflow.store.stored_outputs import open_store, opened
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.tiny import declare_small

FINGERPRINT = "0123456789abcdef"

OBJECTS = {
    f"a/store/small/manifests/exports/bin/{FINGERPRINT}.json": b"{}",
    f"a/store/small/manifests/tokens/manifests/a.jsonl/{FINGERPRINT}.json": b"{}",
    f"a/store/small/tokens/manifests/a.jsonl/{FINGERPRINT}/digest/tokens.bin": b"",
    f"a/store/other/manifests/a_new_stage/a.jsonl/{FINGERPRINT}.json": b"{}",
    "a/charts/manifests/production/deployment.json": b"{}",
    f"a/store/manifests/manifests/tokens/b.jsonl/{FINGERPRINT}.json": b"{}",  # a dataset's name
    f"a/store/manifests/tokens/b.jsonl/{FINGERPRINT}/digest/tokens.bin": b"",
}


@pytest.mark.parametrize(
    "path",
    [
        "",
        "small/exports/bin",
        f"small/exports/bin/{FINGERPRINT}/train.bin",
        f"small/tokens/manifests/a.jsonl/{FINGERPRINT}",
    ],
)
def test_a_url_in_a_store_is_found_with_the_manifests_there(path: str, object_store: ObjectStore):
    for key, data in OBJECTS.items():
        objects_at(object_store.url).put(key, data)

    of, found = opened(f"{object_store.url}/a/store/{path}/")

    store = open_store(f"{object_store.url}/a/store").root
    assert found == store / path
    assert of.shown(found) == f"{object_store.url}/a/store/{path}".rstrip("/")
    assert (
        store / "small/exports/bin" / FINGERPRINT / "_tokflow/manifest.json"
    ).read_bytes() == b"{}"
    assert (store / "other/a_new_stage/a.jsonl").exists() == (path == "")


def test_a_store_is_found_by_who_may_not_look_above_it(object_store: ObjectStore):
    for key, data in OBJECTS.items():
        objects_at(object_store.url).put(key, data)
    for above in ("manifest*", "a/manifest*"):
        object_store.fail("403", "*", above, times=None)

    assert opened(f"{object_store.url}/a/store")[1].name.startswith("s3-bucket-")
    with pytest.raises(RemoteStoreError):
        opened(f"{object_store.url}/a/none")[1]


@pytest.mark.parametrize(
    "url", ["s3://me:hidden@bucket/a", "s3://bucket/a?key=hidden", "s3://me:hid/den@bucket/a"]
)
def test_a_url_with_a_secret_is_refused_and_not_shown(url: str):
    for turn in (opened, open_store):
        with pytest.raises(ConfigError, match="into the environment") as raised:
            turn(url)

        assert "hid" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "file:///",
        "memory://",
        "s3://bucket/../a",
        "s3://bucket//a",
        "simplecache::s3://me:hidden@bucket/a",
        " s3://me:hidden@bucket/a",
        "s3:/me:hidden@bucket",
        "https://server/store",  # to which nothing is written
        "hf://datasets/org/name",
    ],
)
def test_a_url_that_is_none_is_refused_and_not_taken_for_a_folder(url: str):
    for turn in (opened, open_store):
        with pytest.raises(ConfigError) as raised:
            turn(url)

        assert "hidden" not in str(raised.value)


def test_what_is_no_url_is_a_path():
    assert opened("a/b")[1] == open_store("a/b").root == Path("a/b")
    assert opened("a:/b")[1] == Path("a:/b")


@pytest.mark.parametrize("path", [Path("s3://bucket/a"), "s3:/bucket/a", "s3:bucket/a"])
def test_a_url_without_two_slashes_as_a_path_makes_of_it_is_refused(path: str | Path):
    for turn in (opened, open_store):
        with pytest.raises(ConfigError, match="give s3://bucket/a as text"):
            turn(path)


def test_an_error_shows_the_url_also_in_another_process(object_store: ObjectStore):
    folder = open_store(f"{object_store.url}/store").root

    error = MissingOutputError(
        where=folder / "a", expected=f"{folder}", found=f"no {folder}/b", remedy="x"
    )

    url = f"{object_store.url}/store"
    assert str(pickle.loads(pickle.dumps(error))) == f"{url}/a: expected {url}, found no {url}/b; x"


def test_a_bucket_that_is_not_there_is_named_for_stores_and_for_raw_files(
    tmp_path: Path, object_store: ObjectStore
):
    nowhere = "s3://bucket-that-nobody-made"

    store = open_store(f"{nowhere}/store")
    with pytest.raises(RemoteStoreError, match="expected a bucket that is there") as of_store:
        store.refresh(store.root)
    with pytest.raises(ConfigError, match="expected a bucket that is there") as of_raw:
        make_plan(declare_small(tmp_path, raw={"files": f"{nowhere}/raw/*.jsonl"}))

    assert of_store.value.where == f"{nowhere}/store"
    assert str(of_raw.value.where).endswith(f": {nowhere}")

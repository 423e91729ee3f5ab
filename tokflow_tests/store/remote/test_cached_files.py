"""Files of outputs at a URL: fetched once, whole, and again where they are damaged here."""

import fcntl
import os
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tokflow.errors import CorruptOutputError, MissingOutputError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.store.integrity import check_files
from tokflow.store.remote.cached_files import alone
from tokflow.store.remote.publication import remove_published
from tokflow_tests.object_store import ObjectStore, another_machine
from tokflow_tests.outputs import fetched, place_of
from tokflow_tests.tiny import build, declare, declare_small
from tokflow_tests.waiting import wait_until


@pytest.fixture(scope="module")
def objects(
    tmp_path_factory: pytest.TempPathFactory, object_server: ObjectStore
) -> dict[str, bytes]:
    """The objects of a dataset that was built once."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with another_machine(object_server, folder) as store:
        build(declare_small(folder, store=f"{store.url}/store"))
    return store.contents()


@pytest.fixture
def built(tmp_path: Path, object_store: ObjectStore, objects: dict[str, bytes]) -> Dataset:
    """A dataset at a URL, of which only the manifests are on this disk."""
    for key, data in objects.items():
        object_store.put(key, data)
    dataset = declare_small(tmp_path, store=f"{object_store.url}/store")
    dataset.store.refresh(dataset.folder)
    return dataset


def _tokens(dataset: Dataset) -> Path:
    found, *_ = sorted(dataset.folder.glob("tokens/**/_tokflow/manifest.json"))
    return found.parents[1] / "tokens.bin"


def test_those_that_want_one_file_at_once_fetch_it_once(
    built: Dataset, object_store: ObjectStore
) -> None:
    path = _tokens(built)
    object_store.fail("slow", "GET", seconds=0.1, times=None)
    with object_store.counted() as count, ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(_size, [path] * 8))
    assert set(sizes) == {built.store.read(path.parent).manifest.files["tokens.bin"].num_bytes}
    assert count["GET"] == 1
    assert not list(path.parent.glob(".*"))


def _size(path: Path) -> int:
    return fetched(path).stat().st_size


def test_a_tokenizer_comes_with_its_files_to_a_machine_that_has_none(
    tmp_path: Path, object_store: ObjectStore
) -> None:
    trained = {"kind": "trained", "vocab_size": 260, "special_tokens": ["<eos>"]}
    raw = {"a.jsonl": ["some text", "more text"]}
    dataset = declare(tmp_path, raw, tokenizer=trained, store=f"{object_store.url}/store")
    build(dataset)
    tokenizer = graph_of(dataset).tokenizer
    sent = pickle.dumps(tokenizer)
    shutil.rmtree(dataset.folder)
    assert pickle.loads(sent) == tokenizer
    assert {path.name for path in tokenizer.folder.iterdir()} == {
        "_tokflow",
        *tokenizer.manifest.files,
    }


def test_a_file_that_a_killed_process_left_or_that_is_damaged_on_its_way_or_here_comes_again(
    built: Dataset, object_store: ObjectStore
) -> None:
    path = _tokens(built)
    part = path.with_name(".tokens.bin.part")
    part.write_bytes(b"half of")
    fault = object_store.fail("flip", "GET", "*tokens.bin")
    check_files(built.store.read(path.parent))
    assert (fault.met, part.exists()) == (1, False)
    whole = path.read_bytes()
    path.write_bytes(b"x" * len(whole))
    check_files(built.store.read(path.parent))
    assert path.read_bytes() == whole


def test_an_object_that_is_damaged_is_named_by_its_url_and_made_again_by_a_run(
    built: Dataset, object_store: ObjectStore
) -> None:
    path = _tokens(built)
    always = object_store.fail("flip", "GET", "*tokens.bin", times=None)
    with pytest.raises(CorruptOutputError) as error:
        fetched(path)
    assert str(error.value.where).startswith(f"{object_store.url}/store/small/tokens/")
    object_store.faults.remove(always)
    result = build(built)
    assert not result.failed
    assert [made.output.stage for made in result.made if made.is_new] == ["tokens"]
    assert path.is_file()


def test_a_file_of_an_output_that_another_machine_removed_is_missing_and_named(
    built: Dataset, object_store: ObjectStore
) -> None:
    path = _tokens(built)
    kept = path.parent.with_name("kept")
    shutil.copytree(path.parent, kept)
    remove_published(place_of(path.parent), path.parent)
    with pytest.raises(MissingOutputError, match="removed"):
        fetched(path)
    assert not path.parent.exists()


@pytest.mark.parametrize("names", [["tokens.bin", "documents.parquet"], ["tokens.bin"] * 8])
def test_all_that_want_files_of_an_output_that_was_removed_are_told_so(
    names: list[str], built: Dataset, object_store: ObjectStore
) -> None:
    folder = _tokens(built).parent
    remove_published(place_of(folder), folder)
    object_store.fail("slow", "GET", "*documents.parquet", seconds=0.3)
    with ThreadPoolExecutor(8) as pool:
        errors = [of.exception() for of in [pool.submit(fetched, folder / of) for of in names]]
    assert {type(error) for error in errors} == {MissingOutputError}, errors
    assert not folder.exists()


def test_where_the_first_gave_up_the_next_has_the_file_of_that_name_to_itself(tmp_path: Path):
    path, is_locked = tmp_path / "tokens.bin", []

    def wait() -> None:
        with alone(path) as part, part.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_locked.append(True)

    with alone(path) as part:
        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: num_open(part) == 2)
        part.unlink()
    waiting.join()

    assert is_locked == [True]


def num_open(path: Path) -> int:
    """Return how often this process has a file open."""
    return sum(os.path.realpath(of) == str(path) for of in Path("/proc/self/fd").iterdir())

import shutil
from pathlib import Path

import pytest

from tokflow.audit.ancestry import Ancestry
from tokflow.audit.inspection import inspect_output
from tokflow.audit.trace import trace_tokens
from tokflow.audit.verify import verify_path
from tokflow.errors import CorruptOutputError, ForeignOutputError, MissingOutputError
from tokflow.pipeline.run import build_dataset
from tokflow.store.store import Store, StoredOutput
from tokflow.store.stored_outputs import Unreadable, find_output, newest_output, walk
from tokflow_tests.outputs import edit_manifest, problems_at
from tokflow_tests.tiny import build, copy_of, declare, declare_small

NUM_OUTPUTS = 1 + 3 * 3 + 2


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    assert build_dataset(declare_small(folder, exports=["bin", "parquet"])).failed == ()
    return folder


@pytest.fixture
def store(built: Path, tmp_path: Path) -> Path:
    return copy_of(built, tmp_path) / "store"


def only_in(folder: Path) -> Path:
    (inside,) = (path for path in folder.iterdir() if not path.is_symlink())
    return inside


def test_a_store_that_was_built_is_outputs_and_nothing_else(store: Path):
    for name in ("recorded.json", "checks.jsonl", "failures.json"):
        (store / "small" / name).write_text("{}")

    found = list(walk(Store(store), store))

    assert [type(each) for each in found] == [StoredOutput] * NUM_OUTPUTS


def test_what_cannot_be_read_is_a_problem_of_the_store(store: Path, tmp_path: Path):
    shard = only_in(store / "small/tokens/a.jsonl")
    (shard / "_tokflow/manifest.json").unlink()
    split = only_in(store / "small/split/a.jsonl")
    (split / "_tokflow/manifest.json").write_text("{")
    tokenizer = only_in(store / "small/tokenizer")
    edit_manifest(tokenizer, lambda fields: fields.update(format_version=3))
    rows = only_in(store / "small/sequences/sub/c.jsonl")
    rows.rename(tmp_path / "elsewhere")
    rows.symlink_to(tmp_path / "elsewhere")

    found = {
        each.folder: each.error
        for each in walk(Store(store), store)
        if isinstance(each, Unreadable)
    }

    assert {folder: type(error) for folder, error in found.items()} == {
        shard: CorruptOutputError,
        split: CorruptOutputError,
        tokenizer: ForeignOutputError,
        rows: MissingOutputError,
    }
    assert set(map(str, found.values())) <= set(problems_at(store))
    names = {verified.folder: verified.name for verified in verify_path(store)}
    assert {names[folder] for folder in found} == {"unreadable output"}
    assert str(found[rows]) == (
        f"{rows}: expected a folder, found a link to {tmp_path}/elsewhere, which is not followed; "
        "name the folder that it leads to"
    )


def test_a_partition_may_be_called_as_the_cache_of_checksums(tmp_path: Path):
    made = declare(tmp_path, {"hashes.jsonl-x/q.jsonl": ["a"], "hashes.jsonl/r.jsonl": ["b"]},
                   raw={"files": "raw/**/*.jsonl"})  # fmt: skip
    build(made)

    found = [each for each in walk(made.store, made.store.root) if isinstance(each, StoredOutput)]

    assert {each.manifest.partition for each in found} == {
        None,
        "hashes.jsonl-x/q.jsonl",
        "hashes.jsonl/r.jsonl",
    }


@pytest.mark.parametrize("text", ["[1]", "\xff"])
def test_a_raw_file_called_manifest_is_no_manifest(text: str, store: Path):
    for folder in (store / "small/raw", store / "small/tokens/x"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_text(text, encoding="latin-1")

    assert problems_at(store) == []


def test_an_export_with_an_output_s_name_is_walked_through(tmp_path: Path):
    made = declare_small(
        tmp_path, exports=[{"format": "bin", "name": "0123456789abcdef"}, "parquet"]
    )
    assert build_dataset(made).failed == ()

    assert [type(each) for each in walk(Store(tmp_path / "store"), tmp_path / "store")] == [
        StoredOutput
    ] * NUM_OUTPUTS


def test_outputs_that_were_copied_out_of_a_store_are_found_under_any_name(
    store: Path, tmp_path: Path
):
    shutil.copytree(store / "small/exports/bin/latest", tmp_path / "copies/one/mine")
    shutil.copytree(store / "small/exports/bin/latest", tmp_path / "copies/two")
    (tmp_path / "copies/two/_tokflow/manifest.json").write_text('{"fingerprint": ')

    assert [type(each) for each in walk(Store(tmp_path / "copies"), tmp_path / "copies")] == [
        StoredOutput,
        Unreadable,
    ]


def test_an_output_in_another_s_place_is_a_problem(store: Path):
    shard = only_in(store / "small/tokens/a.jsonl")
    shard.rename(store / "small/tokens/b.jsonl" / shard.name)
    split = only_in(store / "small/split/b.jsonl")
    split.rename(split.parent / "renamed")

    found = problems_at(store)

    assert [problem.partition(": expected ")[0] for problem in found] == [
        f"{store}/small/tokens/b.jsonl/{shard.name}",
        f"{store}/small/split/b.jsonl/renamed",
    ]


def test_an_unfinished_tokenizer_is_read_by_nobody(store: Path):
    tokenizer = only_in(store / "small/tokenizer")
    unfinished = tokenizer.rename(tokenizer.parent / f".{tokenizer.name}.0.1.2.tmp")
    export = store / "small/exports/bin"

    assert inspect_output(export).tokenizer is None
    assert trace_tokens(export, part="train", start=0, stop=1)[0].text is None
    with pytest.raises(MissingOutputError):
        find_output(unfinished)


def test_a_damaged_output_is_named_where_it_is_the_only_one(store: Path):
    shard = only_in(store / "small/tokens/a.jsonl")
    (shard / "_tokflow/manifest.json").write_text("{")

    assert newest_output(Store(shard.parent), shard.parent) is None
    for path in (shard.parent, shard, shard / "tokens.bin"):
        with pytest.raises(CorruptOutputError, match=r"manifest\.json: expected JSON"):
            find_output(path)
    assert [p.partition(":")[0] for p in problems_at(shard)] == [f"{shard}/_tokflow/manifest.json"]


def test_a_parent_that_is_another_output_is_not_taken_for_it(store: Path):
    shard = only_in(store / "small/tokens/a.jsonl")
    other = edit_manifest(shard, lambda fields: fields["config"].update(eos="none"))
    shard.rename(shard.parent / other[:16])

    split = find_output(store / "small/split/a.jsonl")

    with pytest.raises(MissingOutputError, match=str(shard)):
        Ancestry().shard(split)


def test_an_empty_folder_with_an_output_s_name_is_no_output(tmp_path: Path):
    empty = tmp_path / "tokens/a.jsonl/0123456789abcdef"
    empty.mkdir(parents=True)

    (tmp_path / "manifest.json").write_text('{"text": "mine"}')

    assert list(walk(Store(tmp_path), tmp_path)) == []
    for look in (lambda: find_output(empty), lambda: list(verify_path(tmp_path))):
        with pytest.raises(MissingOutputError, match=r"found no _tokflow/manifest\.json"):
            look()
    (empty / "tokens.bin").touch()
    with pytest.raises(CorruptOutputError):
        find_output(empty)


def test_a_path_that_is_not_there_is_told_with_what_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("bin", "npy", ".hidden"):
        (tmp_path / "exports" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(
        MissingOutputError,
        match=f"exports/bn/latest: .* found no 'bn' in {tmp_path}/exports, which has bin, npy;",
    ):
        find_output(Path("exports/bn/latest"))

"""`verify` of a store or a dataset names what is wrong, and nothing that is right."""

import hashlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tokflow.audit.verify import verifier, verify_dataset, verify_path
from tokflow.audit.verify.verifier import Verification
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.run import build_dataset
from tokflow.pools import open_pool
from tokflow.pools.pool import Pool
from tokflow.raw.hashes import HashCache, stamp_of
from tokflow.store.manifest import checksums, read_manifest, write_manifest
from tokflow_tests.tiny import copy_of, declare_small, write_raw

DAMAGED = "its parents are damaged (tokens of a.jsonl): not compared with it"

REJECTING = {"on_bad_document": "reject", "max_rejects": 1}


@pytest.fixture
def small(built_small: Path, tmp_path: Path) -> Dataset:
    """Three files, built."""
    return declare_small(copy_of(built_small, tmp_path))


def flip(path: Path) -> Path:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path.resolve()


def file_of(small: Dataset, key: str, name: str) -> Path:
    [path] = small.folder.glob(f"*/{key}/*/{name}")
    return path


def problems_of(found: Iterable[Verification]) -> dict[str, tuple[str, ...]]:
    return {verified.name: verified.problems for verified in found if verified.problems}


@pytest.mark.parametrize(
    ("whole", "name"), [("store", "tokens.bin"), ("dataset", "documents.parquet")]
)
def test_a_damaged_shard_is_the_one_problem_of_all_that_was_made_from_it(
    whole: str, name: str, small: Dataset
):
    path = flip(file_of(small, "a.jsonl", name))

    found = list(verify_dataset(small) if whole == "dataset" else verify_path(small.folder))

    [(culprit, [problem])] = problems_of(found).items()
    assert culprit == "tokens of a.jsonl"
    assert problem.startswith(f"{path}: expected sha256 ")
    notes = {verified.name: verified.notes for verified in found}
    assert notes["split of a.jsonl"] == notes["sequences of a.jsonl"] == (DAMAGED,)
    assert notes["export bin"] == notes["export parquet"] == (DAMAGED,)
    assert notes["split of b.jsonl"] == ()


@pytest.mark.parametrize("whole", ["store", "dataset"])
def test_several_processes_find_what_one_finds_in_the_same_order(
    whole: str, small: Dataset, monkeypatch: pytest.MonkeyPatch
):
    flip(file_of(small, "a.jsonl", "tokens.bin"))
    tokens = file_of(small, "b.jsonl", "tokens.bin")
    ids = np.fromfile(tokens, "<u2")
    ids[0] += 1
    tokens.write_bytes(ids.tobytes())  # listed as it is now, and not what the raw file has
    made = replace(read_manifest(tokens.parent), files=checksums(tokens.parent))
    write_manifest(tokens.parent, made, run={})
    pools = []

    def noted(jobs: int | None, kind: str) -> Pool:
        pools.append(open_pool(jobs, kind))
        return pools[-1]

    def verified(jobs: int) -> list[Verification]:
        if whole == "dataset":
            return list(verify_dataset(small, jobs=jobs))
        return list(verify_path(small.folder, jobs=jobs))

    alone = verified(1)
    monkeypatch.setattr(verifier, "SMALL_BYTES", 0)
    monkeypatch.setattr(verifier, "open_pool", noted)
    assert verified(2) == alone
    assert [type(of).__name__ for of in pools] == ["LocalPool"]
    wrong = {"store": [], "dataset": ["tokens of b.jsonl"]}[whole]
    assert sorted(problems_of(alone)) == ["tokens of a.jsonl", *wrong]


def remember(dataset: Dataset, path: Path, *, sha256: str) -> None:
    HashCache(dataset.folder).keep(path, stamp_of(path), sha256)


def test_a_wrong_remembered_checksum_is_named_and_put_right(small: Dataset):
    cache, raw = small.folder / "hashes.jsonl", small.base / "raw/b.jsonl"
    list(verify_dataset(small))  # remembers the files of this copy
    remember(small, raw, sha256="0" * 64)

    first = problems_of(verify_dataset(small))

    sha256 = hashlib.sha256(raw.read_bytes()).hexdigest()
    [(name, [problem])] = first.items()
    assert name == "raw file b.jsonl"
    assert problem.startswith(
        f"{cache}: expected sha256 {sha256[:16]}… of {raw}, as the file is now, "
        f"found {'0' * 16}… for a file of its size and times; "
    )
    assert problems_of(verify_dataset(small)) == {}


def test_a_raw_file_that_changed_behind_its_times_is_found(small: Dataset):
    list(verify_dataset(small))
    path = small.base / "raw/b.jsonl"
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(b"four", b"five"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    sha256 = hashlib.sha256(path.read_bytes().replace(b"five", b"four")).hexdigest()
    remember(small, path, sha256=sha256)  # as if its ctime were the same, too

    problems = problems_of(verify_dataset(small))

    assert "as the file is now" in problems["raw file b.jsonl"][0]
    assert problems["tokens of b.jsonl"] == (
        "small/tokens (partition b.jsonl): not built; run `tokflow run`",
    )
    assert problems.keys() >= {"export bin", "export parquet"}


def test_a_damaged_tokenizer_is_named_and_not_the_tokens(tmp_path: Path):
    made = declare_small(tmp_path, tokenizer={"kind": "trained", "vocab_size": 260})
    assert build_dataset(made).failed == ()
    [path] = made.folder.glob("tokenizer/*/tokenizer.json")
    flip(path)

    found = list(verify_dataset(made))

    assert [*problems_of(found)] == ["tokenizer"]
    [note] = {verified.notes for verified in found if verified.name.startswith("tokens of")}
    assert note == ("its tokenizer is damaged: not compared with the raw file",)


def test_a_file_that_nobody_listed_does_not_keep_others_from_being_compared(small: Dataset):
    (file_of(small, "a.jsonl", "tokens.bin").parent / "notes.txt").write_text("mine")

    found = list(verify_path(small.folder))

    assert [*problems_of(found)] == ["tokens of a.jsonl"]
    notes = {verified.name: verified.notes for verified in found}
    assert notes["split of a.jsonl"] == notes["export bin"] == ()


def test_a_shard_whose_tokenizer_is_gone_is_well_with_a_note(small: Dataset):
    shutil.rmtree(small.folder / "tokenizer")

    found = list(verify_path(small.folder))

    assert problems_of(found) == {}
    notes = {verified.name: verified.notes for verified in found}
    assert notes["tokens of a.jsonl"] == ("its tokenizer is not in this store",)
    assert notes["split of a.jsonl"] == ()


def test_a_shard_that_the_config_does_not_allow_now_is_not_said_to_be_missing(tmp_path: Path):
    fields = {"raw": {"files": "raw/*.jsonl"}, "exports": ["bin"]}
    write_raw(tmp_path, {"a.jsonl": ["one", 2]})
    assert build_dataset(declare_small(tmp_path, documents=REJECTING, **fields)).failed == ()
    strict = declare_small(tmp_path, **fields)

    [problem] = problems_of(verify_dataset(strict))["tokens of a.jsonl"]

    assert (
        "found one with 1 in rejects.jsonl, more than documents.on_bad_document allows" in problem
    )

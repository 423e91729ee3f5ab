import errno
import operator
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokflow.exports import Export, stage
from tokflow.exports.formats import llmc
from tokflow.exports.options import PartRows, ShardOptions
from tokflow.exports.reading import open_export
from tokflow.exports.stage import ExportSegment, ExportWriter
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.run import build_dataset
from tokflow.store import streams
from tokflow_tests.disks import flip
from tokflow_tests.exports.exporting import export
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.outputs import content, stored
from tokflow_tests.tiny import build, declare

FORMATS: list[dict[str, Any]] = [
    {"format": "parquet", "sequences_per_group": 2},
    {"format": "arrow", "padding": "longest", "sequences_per_batch": 3},
    {"format": "jsonl", "compression": "gz", "shard_size": 1_200},
    {"format": "npy", "layout": "sequences", "shard_size": 320},
    {"format": "npy", "shard_size": 320},
    {"format": "llmc", "shard_size": 320},
    {"format": "olmo", "shard_size": 100},
    {"format": "datatrove", "shard_size": 320},
    {"format": "modalities", "shard_size": 320},
    {"format": "litdata", "shard_size": 320, "block_size": 16},
    {"format": "lance", "shard_size": 600},
    {"format": "lance", "layout": "sequences"},
    {"format": "hf_dataset", "padding": "none"},
    {"format": "mds", "shard_size": 1_000, "compression": "zstd", "hashes": ["sha1"]},
    {"format": "webdataset"},
    {"format": "pickle", "shard_size": 400},
]


def sizes_by_file(files: list[tuple[str, int]], most: int) -> list[int]:
    num = sum(of for _, of in files)
    rows = PartRows(num, 1, False, np.dtype(np.uint16), files)
    options = ShardOptions(shards="by_file", shard_size=most)
    return options.sizes(rows, 1)


@pytest.mark.parametrize(
    ("files", "sizes"),
    [
        ([("", 0)], []),
        ([("", 25)], [10, 10, 5]),
        ([("a", 6), ("b", 5), ("", 1)], [6, 5, 1]),
        ([("a", 25), ("b", 0), ("c", 1), ("", 0)], [10, 10, 5, 1]),
        ([("b", 0), ("a", 12), ("c", 0), ("", 0)], [10, 2]),
    ],
)
def test_a_shard_holds_whole_files_and_tails_have_their_own(
    files: list[tuple[str, int]], sizes: list[int]
):
    assert sizes_by_file(files, 10) == sizes


def test_one_file_more_changes_few_shards():
    files = [(f"{number:03}", 1 + number % 7) for number in range(400)]
    more = [*files[:50], ("049b", 3), *files[50:]]

    before, after = (sizes_by_file([*of, ("", 0)], 20) for of in (files, more))

    assert sum(after) == sum(before) + 3
    assert max(after) <= 20
    num_equal = num_leading(before, after) + num_leading(before[::-1], after[::-1])
    assert num_equal > len(after) - 5


def num_leading(before: list[int], after: list[int]) -> int:
    return [*map(operator.eq, before, after), False].index(False)


def dataset_in(folder: Path, options: Any, *names: str, **more: Any) -> Dataset:
    files = {}
    for name in names:
        choose = random.Random(name)
        files[f"{name}.jsonl"] = ["x" * choose.randint(0, 40) + name for _ in range(6)]
    several = options if isinstance(options, list) else [options]
    exports = [{"shards": "by_file", "shard_size": 2_500, **each} for each in several]
    split = {"parts": {"train": {"fraction": 0.9}, "rest": {"fraction": 0.1}}}
    packing = {"sequence_length": 8}
    files["empty.jsonl"] = ["", ""]
    return declare(folder, files, exports=exports, split=split, packing=packing, **more)


def inodes(folder: Path) -> set[int]:
    return {path.stat().st_ino for path in folder.rglob("*[0-9]*") if path.is_file()}


def test_a_file_more_leaves_the_other_shards_as_they_were(tmp_path: Path):
    names = "abdefghij"
    exports = [{"name": f"{number}", **of} for number, of in enumerate(FORMATS)]
    last = build(dataset_in(tmp_path / "store", exports, *names))
    now = build(dataset_in(tmp_path / "store", exports, *names, "c"))
    anew = build(dataset_in(tmp_path / "anew", exports, *names, "c"))

    for each in exports:
        made = now.export(each["name"])
        linked = inodes(made.folder) & inodes(last.export(each["name"]).folder)
        assert content(made.folder) == content(anew.export(each["name"]).folder), each
        assert len(linked) > len(inodes(made.folder)) / 2, each
        for part in ("train", "rest") if each["format"] != "pickle" else ():  # never read
            read = [of["token_ids"] for of in Export(stored(made.folder)).read(part)]
            counts = made.manifest.counts
            num = counts.get(f"{part}.num_sequences", counts[f"{part}.num_tokens"])
            assert sum(map(len, read)) == num


def test_workers_write_the_same_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    alone, _ = export(dataset_in(tmp_path / "alone", FORMATS[0], "a", "b", "c"))
    monkeypatch.setattr(stage, "SEGMENT_TOKENS", 1)
    several, _ = export(dataset_in(tmp_path / "several", FORMATS[0], "a", "b", "c"))

    assert content(several) == content(alone)


def test_shards_that_a_file_cannot_hold_are_more_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(llmc, "MAX_FILE_BYTES", llmc.HEADER_BYTES + 160)
    dataset = dataset_in(tmp_path, {"format": "llmc", "shard_size": "3GB"}, "a", "b", "c")

    folder, manifest = export(dataset)

    read = [of["token_ids"] for of in Export(stored(folder, manifest)).read("train")]
    assert sum(map(len, read)) == manifest.counts["train.num_tokens"]
    assert max(len(of) for of in read) <= 80
    assert len(read) > 3


def test_a_shard_has_a_document_however_small_it_is_to_be(tmp_path: Path):
    dataset = dataset_in(tmp_path, {"format": "npy", "shard_size": 1}, "a", "b")

    _, manifest = export(dataset)

    assert manifest.counts["train.num_tokens"] > 0
    assert len([of for of in manifest.files if of.startswith("train")]) > 2


def test_a_damaged_shard_of_the_last_export_is_written_anew(tmp_path: Path):
    names = "abdefghijklmn"
    last, _ = export(dataset_in(tmp_path / "store", FORMATS[1], *names))
    anew, _ = export(dataset_in(tmp_path / "anew", FORMATS[1], *names, "z"))
    flip(sorted(last.glob("train-00000*"))[0])
    dataset = dataset_in(tmp_path / "store", FORMATS[1], *names, "z")

    now, _ = export(dataset)

    assert content(now) == content(anew)


@pytest.mark.parametrize("is_here", [True, False])
def test_files_of_the_last_export_that_are_only_at_a_url_are_written_anew_by_several_tasks(
    is_here: bool, tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    url, names = f"{object_store.url}/store", "abdefghij"
    last = build(dataset_in(tmp_path, FORMATS[0], *names, store=url)).export("parquet").manifest
    anew, manifest = export(dataset_in(tmp_path / "anew", FORMATS[0], *names, "c"))
    if not is_here:
        shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr(stage, "SEGMENT_TOKENS", last.counts["train.num_tokens"] // 2)
    write, shares = ExportWriter.write, []

    def note(writer: ExportWriter, share: ExportSegment | None, *more: Any) -> None:
        shares.append(share)
        write(writer, share, *more)

    monkeypatch.setattr(ExportWriter, "write", note)
    build_dataset(dataset_in(tmp_path, FORMATS[0], *names, "c", store=url), jobs=1)

    assert (shares == [None]) == is_here
    assert len(shares) == 1 or not is_here
    found = open_export(f"{url}/tiny/exports/parquet")
    found.stored.fetch(found.manifest.files)
    assert {*found.manifest.files} == {*manifest.files}
    for name in manifest.files:
        assert found.stored.file(name).read_bytes() == (anew / name).read_bytes()


@pytest.mark.parametrize("format_", ["bin", "megatron"])
@pytest.mark.parametrize("num_copied", [0, 100, 2**28])
def test_tokens_of_a_file_that_sorts_last_stand_behind_a_copy_of_the_last_export(
    format_: str, num_copied: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    copied, copy = [], os.copy_file_range

    def some(source: int, file: int, num: int) -> int:
        copied.append(copy(source, file, num) if len(copied) < 2 and num_copied else 0)
        return copied[-1]

    last, _ = export(many(tmp_path / "store", format_, "a", "b"))
    monkeypatch.setattr(streams, "COPY_BYTES", num_copied)
    monkeypatch.setattr(os, "copy_file_range", some)
    now, _ = export(many(tmp_path / "store", format_, "a", "b", "c"))
    monkeypatch.undo()
    anew, _ = export(many(tmp_path / "anew", format_, "a", "b", "c"))

    [size] = [path.stat().st_size for path in last.glob("train*.bin")]
    assert sum(copied) == min(size, 2 * num_copied)
    assert copied
    assert content(now) == content(anew)


def test_a_disk_that_fails_behind_a_copy_of_the_last_export_is_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    export(many(tmp_path / "store", "bin", "a", "b"))
    dataset = many(tmp_path / "store", "bin", *"abcd")
    faults, read_bytes = [OSError(errno.EIO, "Input/output error")], Path.read_bytes

    def fail_once(path: Path) -> bytes:
        is_copied = [*(tmp_path / "store").rglob("exports/bin/.*/train.bin")]
        if path.match("tokens/d.jsonl/*/tokens.bin") and is_copied and faults:
            raise faults.pop()
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", fail_once)
    built = build_dataset(dataset)

    assert not faults
    [failed] = built.failed
    assert "Input/output error" in str(failed.error)


@pytest.mark.parametrize(
    ("damaged", "names"),
    [(True, "a b c d"), (False, "a aa b c"), (False, "a c d"), (False, "b c d")],
)
def test_tokens_that_the_last_export_has_not_so_are_written_anew(
    damaged: bool, names: str, tmp_path: Path
):
    last, _ = export(many(tmp_path / "store", "bin", *"abc"))
    if damaged:
        flip(last / "train.bin")
    shutil.rmtree(tmp_path / "store/raw")

    now, _ = export(many(tmp_path / "store", "bin", *names.split()))

    anew, _ = export(many(tmp_path / "anew", "bin", *names.split()))
    assert content(now) == content(anew)


def many(folder: Path, format_: str, *names: str) -> Dataset:
    files = {f"{name}.jsonl": [name * 200] * 4 for name in names}
    return declare(folder, files, exports=[format_])

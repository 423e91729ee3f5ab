import struct
from functools import partial
from pathlib import Path

import pytest

from tokflow.errors import ConfigError, CorruptOutputError
from tokflow.exports import Export
from tokflow.pipeline.run import build_dataset
from tokflow.store.manifest import Manifest
from tokflow_tests.exports.exporting import MANY_IDS, export_as, read
from tokflow_tests.outputs import stored
from tokflow_tests.tiny import EOS, declare, many_ids

export = partial(export_as, "llmc")


def tokens_of(folder: Path, manifest: Manifest, part: str = "train") -> list[list[int]]:
    return [of["token_ids"].tolist() for of in read(folder, manifest, part)]


def names_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.bin"))


def test_a_file_is_a_header_and_tokens_with_eos_before_each_document(tmp_path: Path):
    folder, manifest = export(tmp_path, {"a.jsonl": ["ab", "", "c"]})

    data = (folder / "tiny_train_000000.bin").read_bytes()

    assert struct.unpack("<256i", data[:1024]) == (20240520, 1, 6, *[0] * 253)
    assert struct.unpack("<6H", data[1024:]) == (EOS, *b"ab", EOS, EOS, *b"c")
    assert Export(stored(folder, manifest)).layout.eos_first


def test_many_ids_have_the_header_of_llama_3(tmp_path: Path):
    (tmp_path / "many.json").write_text(many_ids())
    folder, _ = export(
        tmp_path, {"a.jsonl": ["w65536 w7"]}, attributes={"tokenizer": MANY_IDS}, prefix="x"
    )

    data = (folder / "x_train_000000.bin").read_bytes()

    assert struct.unpack("<256i", data[:1024]) == (20240801, 7, 3, *[0] * 253)
    assert struct.unpack("<3I", data[1024:]) == (70_000, 65_536, 7)


def test_documents_without_a_mark_are_refused(tmp_path: Path):
    tokenizer = {"kind": "bytes", "eos": "none"}

    with pytest.raises(ConfigError) as raised:
        declare(tmp_path, {"a.jsonl": ["ab"]}, exports=["llmc"], tokenizer=tokenizer)

    assert (raised.value.where, raised.value.found) == (
        "test: exports: llmc",
        "documents without EOS and BOS",
    )


def test_files_hold_whole_documents_and_are_called_as_trainers_glob_them(tmp_path: Path):
    later = {"validation": {"start": 4, "documents": 9}, "x": {"start": 99}}
    split = {"parts": {"train": {"documents": 4}, **later}}
    folder, manifest = export(
        tmp_path,
        {"a.jsonl": ["ab", "c", "defghij", "", "k"]},
        attributes={"split": split},
        prefix="fineweb",
        shard_size=10,
    )

    assert names_of(folder) == [
        "fineweb_train_000000.bin",
        "fineweb_train_000001.bin",
        "fineweb_train_000002.bin",
        "fineweb_val_000000.bin",
    ]
    assert tokens_of(folder, manifest) == [[EOS, *b"ab", EOS, *b"c"], [EOS, *b"defghij"], [EOS]]
    assert tokens_of(folder, manifest, "validation") == [[EOS, *b"k"]]
    assert tokens_of(folder, manifest, "x") == []


def test_no_file_is_larger_than_llmc_can_seek_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokflow.exports.formats.llmc.MAX_FILE_BYTES", 1024 + 2 * 6 + 1)

    folder, manifest = export(tmp_path, {"a.jsonl": ["ab", "c", "d"]})

    assert tokens_of(folder, manifest) == [[EOS, *b"ab", EOS, *b"c"], [EOS, *b"d"]]


def test_a_document_that_fits_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokflow.exports.formats.llmc.MAX_FILE_BYTES", 1024 + 2 * 6)
    exports = [{"format": "llmc", "shard_size": 6}]
    dataset = declare(tmp_path, {"a.jsonl": ["a", "bcdefgh"]}, exports=exports)

    [failed] = build_dataset(dataset).failed

    assert (failed.error.where, failed.error.found) == ("exports: llmc", "8")


@pytest.mark.parametrize("damage", [(0, 7), (4, 2), (8, 5)])
def test_a_header_that_is_not_the_files_is_an_error(tmp_path: Path, damage: tuple[int, int]):
    folder, manifest = export(tmp_path, {"a.jsonl": ["abc"]})
    position, number = damage
    with (folder / "tiny_train_000000.bin").open("r+b") as file:
        file.seek(position)
        file.write(struct.pack("<i", number))

    with pytest.raises(
        CorruptOutputError, match=r"expected the magic and version of llm\.c's files"
    ):
        tokens_of(folder, manifest)

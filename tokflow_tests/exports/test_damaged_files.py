"""Files that are not what their format says: who reads them is told which, and gets nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tokflow.errors import CorruptOutputError
from tokflow_tests.exports.exporting import export_as, read

Damage = Callable[[bytes], bytes]

ROW = b'{"input_ids":[97,98,256,99],"segment_ids":[1,1,1,2]}\n'
SAID = "expected what its format says, found "


def cut(stop: int) -> Damage:
    return lambda data: data[:stop]


def put(start: int, found: bytes) -> Damage:
    return lambda data: data[:start] + found + data[start + len(found) :]


def lines(content: bytes) -> Damage:
    return lambda _: content


FILES = {
    "jsonl": "train-00000-of-00001.jsonl",
    "litdata": "train/chunk-0-0.bin",
    "mds": "train/shard.00000.mds",
    "megatron": "train_text_document.idx",
    "modalities": "train.pbin",
    "webdataset": "train/shard_00000000.tar",
}


@pytest.mark.parametrize(
    ("format_", "damage", "said"),
    [
        ("jsonl", lines(ROW[:-2]), SAID),
        ("jsonl", lines(ROW.replace(b"99]", b"99,5]")), SAID),
        ("jsonl", lines(ROW + b'{"input_ids":[256,256,256,256]}'), SAID),
        ("jsonl", lines(ROW.replace(b"97,98,256,99", b'"a"')), SAID),
        ("jsonl", lines(ROW), "2 sequences in a portion, found 1;"),
        ("jsonl", lines(3 * ROW), "2 sequences in a portion, found 3;"),
        ("litdata", cut(-2), "expected 26 bytes, 2 items in them, found 24"),
        ("mds", cut(-1), "2 items in them, found"),
        ("megatron", put(0, b"MMAP"), "version 1 and dtype 4 or 8"),
        ("megatron", put(9, b"\2"), "version 1 and dtype 4 or 8"),
        ("megatron", put(17, b"\6"), "version 1 and dtype 4 or 8"),
        *(
            ("modalities", cut(size), f"in a file of {size}; delete the export")
            for size in (40, 17, 12, 11, 0)
        ),
        ("webdataset", put(0, b"x"), SAID),  # the header's checksum is another
        ("webdataset", put(512, b"x"), SAID),  # no gzip member
        ("webdataset", put(520, bytes(20)), SAID),  # no such deflated data
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(
    format_: str, damage: Damage, said: str, tmp_path: Path
):
    folder, _ = export_as(format_, tmp_path, ["ab", "c"])
    path = folder / FILES[format_]
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(CorruptOutputError) as raised:
        read(folder)

    assert said in str(raised.value)
    assert str(folder) in raised.value.where

from pathlib import Path

import pytest

from tokflow.exports import FORMATS
from tokflow_tests.disks import full_disk
from tokflow_tests.exports.exporting import export
from tokflow_tests.outputs import parts
from tokflow_tests.pools.forked import forked
from tokflow_tests.tiny import build, declare


def test_bin_leaves_the_name_val_to_the_part_that_has_it(tmp_path: Path):
    split = {"parts": {"val": {"documents": 1}, "validation": {"start": 1}}}
    dataset = declare(tmp_path, {"a.jsonl": ["ab", "c"]}, exports=["bin"], split=split)
    folder, _ = export(dataset)

    assert {path.name for path in folder.iterdir()} == {"_tokflow", "val.bin", "validation.bin"}
    assert (folder / "val.bin").read_bytes() == b"a\0b\0\0\1"
    assert (folder / "validation.bin").read_bytes() == b"c\0\0\1"


def test_bin_on_a_full_disk_is_an_error_and_not_a_shorter_file(tmp_path: Path):
    build(dataset := declare(tmp_path, {"a.jsonl": ["x" * 1_800]}, exports=["bin"]))
    [written] = parts(dataset, "bin").values()

    def is_refused() -> bool:
        with full_disk(3001), pytest.raises(OSError, match="File too large"):
            [*FORMATS["bin"].write(written, FORMATS["bin"].options(), tmp_path)]
        return True

    assert forked(is_refused)

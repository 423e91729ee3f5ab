from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.verify.export import verify_export
from tokflow.errors import ConfigError
from tokflow.exports.options import ShardOptions
from tokflow_tests.exports.exporting import read
from tokflow_tests.outputs import parts, stored
from tokflow_tests.tiny import build, declare

SPLIT = {"parts": {"train": {"documents": 1}, "validation": {"start": 1}}}


@pytest.mark.parametrize(
    ("format_", "options", "expected"),
    [
        ("bin", {"names": {"validation": "validation.bin"}}, ["train.bin", "validation.bin"]),
        ("bin", {"names": {"train": "tr.bin"}}, ["tr.bin", "val.bin"]),
        (
            "llmc",
            {"names": {"validation": "validation"}},
            ["tiny_train_000000.bin", "tiny_validation_000000.bin"],
        ),
        ("npy", {"names": {"train": "tr"}}, ["tr.npy", "validation.npy"]),
        (
            "npy",
            {"prefix": "x", "names": {"validation": "validation"}},
            ["x_train_000000.npy", "x_validation_000000.npy"],
        ),
    ],
)
def test_a_part_s_file_is_called_as_the_yaml_says_and_read_and_verified_by_that_name(
    format_: str, options: dict[str, Any], expected: list[str], tmp_path: Path
):
    exports = [{"format": format_, **options}]
    dataset = declare(tmp_path, {"a.jsonl": ["ab", "c"]}, exports=exports, split=SPLIT)
    made = build(dataset).export(format_)
    folder = made.output.folder

    assert sorted(path.name for path in folder.glob(f"*{Path(expected[0]).suffix}")) == expected
    [own] = read(folder, made.manifest, "validation")
    assert sorted(own["token_ids"].tolist()) == [*b"c", 256]
    of_parts = list(parts(dataset, format_).values())
    assert verify_export(stored(folder, made.manifest), of_parts) == []


@pytest.mark.parametrize(
    ("options", "change"), [({"shard_size": 1}, "raise"), ({"shards": 200_000}, "lower")]
)
def test_more_files_than_the_digits_number_are_refused(options: dict[str, int], change: str):
    ShardOptions(**options).check_num_files(100_000)

    with pytest.raises(ConfigError) as raised:
        ShardOptions(**options).check_num_files(100_001)

    [option] = options
    assert (raised.value.where, raised.value.found) == (str(option), "100,001")

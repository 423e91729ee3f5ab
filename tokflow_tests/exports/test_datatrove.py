import struct
from functools import partial
from pathlib import Path

import pytest

from tokflow.errors import ConfigError
from tokflow.exports.formats.datatrove import _for_people
from tokflow_tests.exports.exporting import export_as
from tokflow_tests.tiny import declare, many_ids

export = partial(export_as, "datatrove")


def ends_of(path: Path) -> list[int]:
    data = path.read_bytes()
    return list(struct.unpack(f"<{len(data) // 8}Q", data))


def test_a_part_is_a_folder_of_tokens_ends_and_metadata(tmp_path: Path):
    split = {"parts": {"train": {"documents": 2}, "validation": {"start": 2}}}
    folder, _ = export(tmp_path, {"a.jsonl": ["ab", "", "c"]}, attributes={"split": split})

    assert sorted(path.name for path in (folder / "train").iterdir()) == [
        "00000_train.ds",
        "00000_train.ds.index",
        "00000_train.ds.metadata",
    ]
    assert (folder / "train/00000_train.ds").read_bytes() == b"a\0b\0\0\1\0\1"
    assert ends_of(folder / "train/00000_train.ds.index") == [3, 4]
    metadata = (folder / "train/00000_train.ds.metadata").read_text()
    assert metadata == "bytes|2\n4\n4.00 T"
    assert (folder / "validation/00000_validation.ds").read_bytes() == b"c\0\0\1"


@pytest.mark.parametrize(
    ("options", "name"), [({}, "tok/many.json"), ({"tokenizer_name_or_path": "mine"}, "mine")]
)
def test_the_metadata_names_the_tokenizer_without_the_folder_of_this_machine(
    options: dict[str, str], name: str, tmp_path: Path
):
    path = tmp_path / "tok/many.json"
    path.parent.mkdir()
    path.write_text(many_ids())
    tokenizer = {"kind": "file", "name": str(path), "engine": "reference", "eos_token": "<eos>"}

    folder, _ = export(
        tmp_path, {"a.jsonl": ["w1"]}, attributes={"tokenizer": tokenizer}, **options
    )

    metadata = (folder / "train/00000_train.ds.metadata").read_text()
    assert metadata.splitlines()[0] == f"{name}|4"


def test_a_tokenizer_s_name_that_would_break_the_metadata_is_refused(tmp_path: Path):
    tokenizer = {"kind": "file", "name": "a|b.json"}

    with pytest.raises(ConfigError, match=r"without \|.*found 'a\|b.json'"):
        declare(tmp_path, {}, tokenizer=tokenizer, exports=["datatrove"])


@pytest.mark.parametrize(
    ("num_tokens", "text"),
    [
        (1, "1.00 T"),
        (999, "999 T"),
        (1_000, "1.00 kT"),
        (9_995, "9.99 kT"),
        (99_950, "100 kT"),
        (999_499, "999 kT"),
        (999_500, "1.00 MT"),
        (1_718_000, "1.72 MT"),
        (45_000_000_000, "45.0 GT"),
    ],
)
def test_people_read_three_digits(num_tokens: int, text: str):
    assert _for_people(num_tokens) == text

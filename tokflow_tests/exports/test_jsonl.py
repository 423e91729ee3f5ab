import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from tokflow_tests.exports.exporting import export_as
from tokflow_tests.tiny import EOS


def exported(folder: Path, texts: list[str], **options) -> Path:
    return export_as("jsonl", folder, texts, **options)[0]


def test_a_line_is_an_object_without_blanks(tmp_path: Path):
    folder = exported(tmp_path, ["ab", "c"])

    assert (folder / "train-00000-of-00001.jsonl").read_text() == (
        '{"input_ids":[97,98,256,99],"segment_ids":[1,1,1,2]}\n'
        '{"input_ids":[256,256,256,256],"segment_ids":[1,0,0,0]}\n'
    )


def test_a_line_has_the_columns_asked_for_in_that_order(tmp_path: Path):
    columns = ["seq_lengths", "labels", "loss_mask", "position_ids", "attention_mask"]
    folder = exported(tmp_path, ["ab", "", "c"], columns=columns, padding=False)

    lines = (folder / "train-00000-of-00001.jsonl").read_text().splitlines()

    assert [list(json.loads(line).items()) for line in lines] == [
        [
            ("input_ids", [*b"ab", EOS, EOS]),
            ("seq_lengths", [3, 1]),
            ("labels", [-100, *b"b", EOS, -100]),
            ("loss_mask", [1, 1, 1, 1]),
            ("position_ids", [0, 1, 2, 0]),
            ("attention_mask", [1, 1, 1, 1]),
        ],
        [
            ("input_ids", [*b"c", EOS]),
            ("seq_lengths", [2]),
            ("labels", [-100, EOS]),
            ("loss_mask", [1, 1]),
            ("position_ids", [0, 1]),
            ("attention_mask", [1, 1]),
        ],
    ]


@pytest.mark.parametrize(
    ("suffix", "decompressor"), [("gz", zlib.decompressobj(31)), ("zst", zstd.ZstdDecompressor())]
)
def test_a_file_is_one_member_or_frame_without_a_time_whatever_is_written_at_once(
    suffix: str, decompressor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokflow.exports.formats.jsonl.TOKENS_AT_ONCE", 8)
    texts = ["x" * 999, "größe"]
    plain = exported(tmp_path / "plain", texts)
    folder = exported(tmp_path / suffix, texts, compression=suffix)

    data = (folder / f"train-00000-of-00001.jsonl.{suffix}").read_bytes()

    expected = (plain / "train-00000-of-00001.jsonl").read_bytes()
    assert decompressor.decompress(data) == expected
    assert decompressor.eof
    assert not decompressor.unused_data
    assert suffix == "zst" or (data[4:8] == bytes(4) and gzip.decompress(data) == expected)

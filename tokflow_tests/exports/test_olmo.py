import gzip
from functools import partial
from pathlib import Path

import pytest

from tokflow.errors import CorruptOutputError
from tokflow.exports.formats.olmo import GZIP_LEVEL
from tokflow_tests.exports.exporting import export_as, read
from tokflow_tests.outputs import content

FILES = {"a.jsonl": ["ab", "", "c"], "b.jsonl": ["defg"]}

export = partial(export_as, "olmo")


def lines_of(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def test_a_part_is_raw_tokens_and_a_line_for_each_document(tmp_path: Path):
    folder, manifest = export(tmp_path, FILES)

    assert sorted(content(folder)) == [
        "_tokflow/index.parquet",
        "_tokflow/manifest.json",
        "train/part-0-00000.csv.gz",
        "train/part-0-00000.npy",
    ]
    data = (folder / "train/part-0-00000.npy").read_bytes()
    assert data == b"a\0b\0\0\1\0\1c\0\0\1d\0e\0f\0g\0\0\1"
    assert lines_of(folder / "train/part-0-00000.csv.gz") == [
        "0,3,a.jsonl:0,a.jsonl,1",
        "3,4,a.jsonl:1,a.jsonl,2",
        "4,6,a.jsonl:2,a.jsonl,3",
        "6,11,b.jsonl:0,b.jsonl,1",
    ]
    assert manifest.counts["train.num_documents"] == 4


def test_a_line_names_the_row_of_the_raw_file(tmp_path: Path):
    raw = tmp_path / "raw" / "a.jsonl"
    raw.parent.mkdir()
    raw.write_text('{"text": "ab"}\n{"text": 1}\n{"text": "c"}\n')
    folder, _ = export(tmp_path, {}, attributes={"documents": {"on_bad_document": "reject"}})

    lines = lines_of(folder / "train/part-0-00000.csv.gz")

    assert lines == ["0,3,a.jsonl:0,a.jsonl,1", "3,5,a.jsonl:2,a.jsonl,3"]


def test_a_name_with_a_comma_stands_in_quotes(tmp_path: Path):
    folder, manifest = export(tmp_path, {"a,b.jsonl": ["ab"], "c.jsonl": ["d"]})

    lines = lines_of(folder / "train/part-0-00000.csv.gz")
    [own] = read(folder, manifest)

    assert lines == ['0,3,"a,b.jsonl:0","a,b.jsonl",1', "3,5,c.jsonl:0,c.jsonl,1"]
    assert own["offsets"].tolist() == [0, 3, 5]


def test_the_lines_are_compressed_in_one_go_without_a_time_or_a_name(tmp_path: Path):
    folder, _ = export(tmp_path, FILES)
    path = folder / "train/part-0-00000.csv.gz"
    text = "".join(f"{line}\n" for line in lines_of(path)).encode()

    # A flush in between, as a TextIOWrapper has at its end, would make other bytes of it.
    assert path.read_bytes()[10:] == gzip.compress(text, GZIP_LEVEL, mtime=0)[10:]
    assert path.read_bytes()[:8] == b"\x1f\x8b\x08\0\0\0\0\0"  # no name, no time


@pytest.mark.parametrize(
    "lines", ["0,3,x,a,1\n3,4,x,a,1\n", "0,3,x,a,1\n4,11,x,a,1\n", "0,3,x,a,1\n3,12,x,a,1\n"]
)
def test_lines_that_are_not_about_every_token_are_refused(lines: str, tmp_path: Path):
    folder, manifest = export(tmp_path, FILES)
    path = folder / "train/part-0-00000.csv.gz"
    path.write_bytes(gzip.compress(lines.encode()))

    with pytest.raises(CorruptOutputError, match="expected documents end to end, 11 tokens in all"):
        read(folder, manifest)

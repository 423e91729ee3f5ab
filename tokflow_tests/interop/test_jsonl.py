"""`datasets` reads our JSON lines, however they are compressed."""

from pathlib import Path

import pytest

from tokflow_tests.interop.harness import known_dataset, read_with
from tokflow_tests.interop.row_columns import PARTS, assert_columns, flat

pytestmark = pytest.mark.interop

ALL = ["attention_mask", "segment_ids", "position_ids", "loss_mask", "labels"]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("ids", "compression", "suffix"),
    [("many", "none", ""), ("bytes", "gz", ".gz"), ("bytes", "zst", ".zst")],
)
def test_the_builder_of_json_reads_every_row_and_column(
    ids: str, compression: str, suffix: str, part: str, tmp_path: Path
):
    known = known_dataset(
        tmp_path, "jsonl", ids=ids, compression=compression, columns=ALL, sequences_per_file=5
    )

    files = {name: f"{name}-*.jsonl{suffix}" for name in PARTS}
    found = read_with("datasets", known.folder, part, how="json", files=files)

    assert_columns(found, flat(known, part), ["input_ids", *ALL])


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("compression", ["none", "gz"])
def test_the_folder_alone_is_a_dataset_of_both_parts(compression: str, part: str, tmp_path: Path):
    known = known_dataset(tmp_path, "jsonl", compression=compression)

    found = read_with("datasets", known.folder, part, how="folder")

    assert found["parts"].tolist() == list(PARTS)
    assert_columns(found, flat(known, part), ["input_ids", "segment_ids"])


def test_many_pieces_of_gzip_are_read_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokflow.exports.jsonl.TOKENS_AT_ONCE", 8)
    known = known_dataset(tmp_path, "jsonl", compression="gz")

    files = {"train": "train-*.jsonl.gz"}
    found = read_with("datasets", known.folder, "train", how="json", files=files)

    assert_columns(found, flat(known, "train"), ["input_ids", "segment_ids"])


@pytest.mark.parametrize("part", PARTS)
def test_rows_without_padding_are_lists_of_their_own_length(part: str, tmp_path: Path):
    columns = ["labels", "seq_lengths"]
    known = known_dataset(tmp_path, "jsonl", columns=columns, padding=False)

    files = {name: f"{name}-*.jsonl" for name in PARTS}
    found = read_with("datasets", known.folder, part, how="json", files=files)

    assert_columns(found, flat(known, part, padding=False), ["input_ids", *columns])

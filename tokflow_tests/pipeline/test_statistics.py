from pathlib import Path

import pytest

from tokflow.pipeline.lines import described
from tokflow.pipeline.run import build_dataset
from tokflow.pipeline.statistics import export_statistics, full, statistics_of
from tokflow_tests.tiny import build, declare_small


def test_statistics_are_of_the_text_of_each_part_and_of_each_export(tmp_path: Path):
    parts = {"train": {"start": 0, "characters": 14}, "validation": {"start": 14}}
    split = {"boundary": "character", "parts": parts}
    packing = {"strategy": "one_document", "sequence_length": 8, "overlong": "truncate"}
    dataset = declare_small(tmp_path, split=split, packing=packing, exports=["bin", "parquet"])

    statistics = statistics_of(build(dataset))

    assert statistics["text"] == {
        "num_documents": 10,
        "num_empty_documents": 1,
        "num_rejects": 0,
        "num_left_out": 0,
        "num_chars": 56,
        "num_bytes": 62,
        "num_tokens": 72,
        "bytes_per_token": 0.8611,
    }
    train, validation = statistics["parts"]
    assert train == {
        "part": "train",
        "num_documents": 2 + 3 + 2,
        "num_chars": 42,
        "num_tokens": 14 + 2 + 15 + 3 + 17 + 2,
        "chars_per_token": 0.7925,
        "num_tokens_of_longest": 13,
    }
    assert validation["num_documents"] == 3 + 2 + 1
    rows = statistics["exports"]["parquet"]
    assert [row["num_sequences"] for row in rows] == [7, 6]
    for part, row in zip(statistics["parts"], rows, strict=True):
        assert row["num_exported_tokens"] + row["num_dropped_tokens"] == part["num_tokens"]
        assert row["fill_fraction"] == round(
            row["num_exported_tokens"] / 8 / row["num_sequences"], 4
        )
    assert "fill_fraction" not in statistics["exports"]["bin"][0]


def test_sequences_with_any_padding_are_not_full():
    assert [full(9_999_999, 10_000_000), full(3, 3), full(0, 0)] == [0.9999, 1, 0]


@pytest.mark.parametrize("padding", ["none", "max"])
def test_rows_that_end_at_their_last_token_are_full(padding: str, tmp_path: Path):
    packing = {"strategy": "one_document", "sequence_length": 20}
    exports = [{"format": "parquet", "padding": padding}]
    [made] = build(declare_small(tmp_path, packing=packing, exports=exports)).of("export")

    fill = export_statistics(made.manifest, "train")["fill_fraction"]

    assert fill == (1.0 if padding == "none" else round(72 / 200, 4))
    assert (" tokens of padding" in described(made)) == (padding == "max")


def test_a_build_of_one_file_tells_of_that_file(tmp_path: Path):
    built = build_dataset(declare_small(tmp_path), partitions=["sub/c.jsonl"])

    statistics = statistics_of(built)

    assert statistics["text"]["num_documents"] == 2
    assert [row["num_tokens_of_longest"] for row in statistics["parts"]] == [14]
    assert statistics["exports"] == {}

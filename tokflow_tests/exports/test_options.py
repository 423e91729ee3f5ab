"""Options that a format cannot have are refused when the dataset is declared: those that types
alone do not refuse."""

from pathlib import Path
from typing import Any

import pytest

from tokflow.errors import ConfigError
from tokflow_tests.tiny import declare

SPLIT = {"parts": {"train": {"documents": 1}, "validation": {"start": 1}}}

NAMES: list[tuple[dict[str, Any], str]] = [
    ({"validaton": "v.bin"}, "expected parts of the split: train, validation, found 'validaton'"),
    ({"train": "VAL.bin", "validation": "val.bin"}, "a file name of its own for each part, found"),
    ({"train": "a/b.bin"}, r"names.train: expected letters, digits, - and _ .*'a/b'"),
    ({"train": ".bin"}, r"names.train: expected letters, digits, - and _ .*found ''"),
    ({"train": "tr"}, "a name that ends in .bin, found 'tr'; write 'tr.bin'"),
    ({"train": 5}, "names.train: expected text, found 5"),
]

BAD_SHARDS: list[tuple[dict[str, Any], str]] = [
    ({"shards": 0}, "shards: expected 1 or more or one of by_file, found 0"),
    ({"shards": "4"}, "shards: expected a whole number or one of by_file, found '4'; write 4"),
    ({"shard_size": 0}, "shard_size: expected 1 .*found 0"),
    ({"shard_size": "much"}, "shard_size: expected bytes, .*found 'much'; write it as 500MB, 2GiB"),
    ({"shard_size": 1.5}, "shard_size: expected bytes, .*found 1.5"),
    ({"shards": 2, "shard_size": 9}, "shards: expected none beside shard_size, found 2; keep one"),
]

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *((name, options, said) for name in ("parquet", "npy") for options, said in BAD_SHARDS),
    ("easydel", {"attention_mask": 0}, "attention_mask: expected true or false, found 0"),
    (
        "parquet",
        {"rename": {"labels": "x"}},
        "rename: expected columns that there are: .* 'labels'",
    ),
    ("parquet", {"rename": {"input_ids": "segment_ids"}}, "rename: expected a name of its own for"),
    ("parquet", {"rename": {"input_ids": "a/b"}}, "rename.input_ids: expected letters"),
    ("arrow", {"padding": "no"}, "padding: expected one of none, longest, max, found 'no'"),
    ("easydel", {"padding": 1}, "padding: expected one of none, longest, max, found 1"),
    ("jsonl", {"padding": 0}, "padding: expected one of none, longest, max, found 0"),
    *(("bin", {"names": names}, said) for names, said in NAMES),
    ("datatrove", {"tokenizer_name_or_path": "a|b"}, r"without \|.*found 'a\|b'"),
    ("datatrove", {"tokenizer_name_or_path": "a\nb"}, r"in one line.*found 'a\\nb'"),
    (
        "hf_dataset",
        {"columns": ["tokens"]},
        r"columns\[0\]: expected one of attention_mask, segment_ids, .* found 'tokens'",
    ),
    (
        "hf_dataset",
        {"columns": ["seq_lengths"]},
        "columns: expected segments that add up to their row, .* add `padding: none`",
    ),
    ("jsonl", {"columns": ["labels", "labels"]}, "columns: expected each column once"),
    ("jsonl", {"compression_level": 3}, "expected none, for nothing is compressed, found 3"),
    ("jsonl", {"compression": "gz", "compression_level": 10}, "expected 1 to 9, found 10"),
    ("jsonl", {"compression": "zst", "compression_level": 0}, "expected 1 to 22, found 0"),
    ("litdata", {"compression": "zstd", "compression_level": 23}, "expected 1 to 22, found 23"),
    ("mds", {"compression_level": 3}, "expected none, for nothing is compressed, found 3"),
    ("webdataset", {"compression_level": 10}, "expected 1 to 9, found 10"),
    ("llmc", {"prefix": "../x"}, r"prefix: expected letters.*found '../x'"),
    ("llmc", {"prefix": ""}, r"prefix: expected letters.*found ''"),
    ("llmc", {"names": {"train": "a/b.bin"}}, r"names.train: expected letters.*'a/b.bin'"),
    ("npy", {"prefix": "a/b"}, "prefix: expected letters"),
    ("npy", {"names": {"train": "../x.npy"}}, r"names.train: expected letters.*'../x.npy'"),
    ("npy", {"layout": "sequences", "eos": "first"}, "eos: expected nothing.*found 'first'"),
    ("megatron", {"prefix": "a/b"}, "becomes a file"),
    ("megatron", {"key": ".."}, "becomes a file"),
    (
        "mds",
        {"shard_size": "4GiB"},
        "shard_size: expected 4,294,967,295 or less, which uint32 counts",
    ),
    ("mds", {"columns": {"s": "segment_ids"}}, "columns: expected named columns: one of token_ids"),
    ("mds", {"columns": {"a": "token_ids", "b": "token_ids"}}, "of other fields one at most"),
    ("mds", {"columns": {"": "token_ids"}}, "columns: expected named columns"),
    ("pickle", {"pad_id": 2**31}, "an id that the model knows.*as int32, found 2147483648"),
]

MISPLACED: list[tuple[str, dict[str, Any], str]] = [
    ("bin", {"padding": "none"}, "remove it, or name a format that has it: arrow, easydel, hf_d"),
    ("pickle", {"padding_side": "left"}, r"write `packing: \{padding_side: ...\}`, for it is a f"),
    ("easydel", {"columns": []}, "`attention_mask: false` leaves out that column"),
    ("parquet", {"attention_mask": False}, "write `columns:` without attention_mask"),
]
"""Keys that belong to other formats, or to packing."""


@pytest.mark.parametrize(("format_", "options", "said"), [*REFUSED, *MISPLACED])
def test_an_option_that_cannot_be_is_refused(
    format_: str, options: dict[str, Any], said: str, tmp_path: Path
):
    with pytest.raises(ConfigError, match=rf"exports.*{said}"):
        declare(tmp_path, exports=[{"format": format_, **options}], split=SPLIT)

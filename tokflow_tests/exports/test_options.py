"""Options that a format cannot have are refused when the dataset is declared."""

from pathlib import Path
from typing import Any

import pytest

from tokflow.errors import ConfigError
from tokflow.exports import FORMATS
from tokflow.exports.options import ShardOptions
from tokflow_tests.tiny import declare

SPLIT = {"parts": {"train": {"documents": 1}, "validation": {"start": 1}}}

ONE_OR_MORE = "expected 1 or more, found 0"

NAMES: list[tuple[dict[str, Any], str]] = [
    ({"validaton": "v.bin"}, "expected parts of the split: train, validation, found 'validaton'"),
    ({"train": "VAL.bin", "validation": "val.bin"}, "a file name of its own for each part, found"),
    ({"train": "a/b.bin"}, r"names.train: expected letters, digits, - and _ .*'a/b'"),
    ({"train": ".bin"}, r"names.train: expected letters, digits, - and _ .*found ''"),
    ({"train": "tr"}, "a name that ends in .bin, found 'tr'; write 'tr.bin'"),
    ({"train": 5}, "names.train: expected text, found 5"),
]

DIVIDED = [name for name, of in FORMATS.items() if issubclass(of.options, ShardOptions)]

BAD_SHARDS: list[tuple[dict[str, Any], str]] = [
    ({"shards": 0}, f"shards: {ONE_OR_MORE}"),
    ({"shards": "4"}, "shards: expected a whole number, found '4'; write 4"),
    ({"shard_size": 0}, "shard_size: expected 1 .*found 0"),
    ({"shard_size": "much"}, "shard_size: expected bytes, .*found 'much'; write it as 500MB, 2GiB"),
    ({"shard_size": 1.5}, "shard_size: expected bytes, .*found 1.5"),
    ({"shards": 2, "shard_size": 9}, "shards: expected none beside shard_size, found 2; keep one"),
]

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *((name, options, said) for name in DIVIDED for options, said in BAD_SHARDS),
    ("archai", {"dataset_file_path": 1}, "dataset_file_path: expected text, found 1"),
    ("archai", {"dataset_config_name": 1}, "dataset_config_name: expected text, found 1"),
    ("archai", {"tokenizer_name": 1}, "tokenizer_name: expected text, found 1"),
    ("archai", {"mapping_column_name": [1]}, r"mapping_column_name\[0\]: expected text, found 1"),
    ("archai", {"validation_split": "some"}, "validation_split: expected a number, found 'some'"),
    ("archai", {"shuffle": "yes"}, "shuffle: expected true or false, found 'yes'"),
    ("archai", {"seed": 1.5}, "seed: expected a whole number, found 1.5"),
    ("arrow", {"compression": "snappy"}, "compression: expected one of none, lz4, zstd, found"),
    ("arrow", {"attention_mask": 0}, "attention_mask: expected true or false, found 0"),
    ("arrow", {"padding": "no"}, "padding: expected one of none, longest, max, found 'no'"),
    ("arrow", {"sequences_per_batch": 0}, f"sequences_per_batch: {ONE_OR_MORE}"),
    *(("bin", {"names": names}, said) for names, said in NAMES),
    ("datatrove", {"tokenizer_name_or_path": "a|b"}, r"without \|.*found 'a\|b'"),
    ("datatrove", {"tokenizer_name_or_path": "a\nb"}, r"in one line.*found 'a\\nb'"),
    ("easydel", {"sequences_per_group": 0}, f"sequences_per_group: {ONE_OR_MORE}"),
    ("easydel", {"compression": "gz"}, "compression: expected one of zstd, snappy, none, found"),
    ("easydel", {"attention_mask": "no"}, "attention_mask: expected true or false, found 'no'"),
    ("easydel", {"padding": 1}, "padding: expected one of none, longest, max, found 1"),
    ("easydel", {"position_ids": 1}, "position_ids: expected true or false, found 1"),
    (
        "hf_dataset",
        {"columns": ["tokens"]},
        r"columns\[0\]: expected one of attention_mask, segment_ids, .* found 'tokens'",
    ),
    ("hf_dataset", {"columns": ["seq_lengths"]}, "add `padding: none`"),
    ("hf_dataset", {"padding": "no"}, "padding: expected one of none, longest, max, found 'no'"),
    ("hf_dataset", {"feature_type": "list"}, "expected one of List, Sequence.*'List'"),
    ("jsonl", {"compression_level": 3}, "expected none, for nothing is compressed, found 3"),
    ("jsonl", {"compression": "gz", "compression_level": 10}, "expected 1 to 9, found 10"),
    ("jsonl", {"compression": "zst", "compression_level": 0}, "expected 1 to 22, found 0"),
    ("jsonl", {"columns": ["labels", "labels"]}, "columns: expected each column once"),
    ("jsonl", {"compression": "bz2"}, "expected one of none, gz, zst, found 'bz2'"),
    ("jsonl", {"padding": 0}, "padding: expected one of none, longest, max, found 0"),
    ("lance", {"layout": "rows"}, "layout: expected one of stream, sequences, found 'rows'"),
    ("litdata", {"block_size": 0}, f"block_size: {ONE_OR_MORE}"),
    (
        "litdata",
        {"compression_level": 3},
        "compression_level: expected none, for nothing is compressed",
    ),
    (
        "litdata",
        {"compression": "zstd", "compression_level": 23},
        "compression_level: expected 1 to 22",
    ),
    ("litdata", {"compression": "lz4"}, "compression: expected one of none, zstd, found 'lz4'"),
    ("llmc", {"prefix": "../x"}, r"prefix: expected letters.*found '../x'"),
    ("llmc", {"prefix": ""}, r"prefix: expected letters.*found ''"),
    ("llmc", {"names": {"train": "a/b.bin"}}, r"names.train: expected letters.*'a/b.bin'"),
    (
        "mds",
        {"shard_size": "4GiB"},
        "shard_size: expected 4,294,967,295 or less, which uint32 counts",
    ),
    ("mds", {"columns": {"s": "segment_ids"}}, "columns: expected named columns: one of token_ids"),
    ("mds", {"columns": {"a": "token_ids", "b": "token_ids"}}, "of other fields one at most"),
    ("mds", {"columns": {"": "token_ids"}}, "columns: expected named columns"),
    ("mds", {"columns": {"a": "tokens"}}, "columns.a: expected one of token_ids, segment_ids"),
    ("mds", {"hashes": ["crc32"]}, r"hashes\[0\]: expected .*found 'crc32'"),
    ("mds", {"compression": "gz"}, "compression: expected one of none, zstd, found 'gz'"),
    (
        "mds",
        {"compression_level": 3},
        "compression_level: expected none, for nothing is compressed",
    ),
    ("megatron", {"prefix": "a/b"}, "becomes a file"),
    ("megatron", {"key": ".."}, "becomes a file"),
    ("megatron", {"key": ""}, "becomes a file"),
    ("megatron", {"dtype": "int64"}, "expected one of auto, uint16, int32, found 'int64'"),
    ("npy", {"layout": "sequences", "eos": "first"}, "eos: expected nothing.*found 'first'"),
    ("npy", {"prefix": "a/b"}, "prefix: expected letters"),
    ("npy", {"layout": "rows"}, "layout: expected one of stream, sequences, found 'rows'"),
    ("npy", {"names": {"train": "../x.npy"}}, r"names.train: expected letters.*'../x.npy'"),
    ("parquet", {"attention_mask": None}, "attention_mask: expected true or false, found None"),
    (
        "parquet",
        {"padding": "max_length"},
        "expected one of none, longest, max, found",
    ),
    ("parquet", {"sequences_per_group": 0}, f"sequences_per_group: {ONE_OR_MORE}"),
    ("parquet", {"compression": "gz"}, "compression: expected one of zstd, snappy, none, found"),
    (
        "pickle",
        {"pad_id": 2**31},
        "an id that the model knows.*as int32, found 2147483648",
    ),
    ("pickle", {"pad_id": -(2**31) - 1}, "pad_id: expected -2,147,483,648 to 2,147,483,647"),
    ("webdataset", {"compression_level": 10}, "expected 1 to 9, found 10"),
    (
        "webdataset",
        {"compression": "none", "compression_level": 1},
        "nothing is compressed, found 1",
    ),
    ("webdataset", {"compression": "zst"}, "expected one of gz, none, found 'zst'"),
]

ELSEWHERE: list[tuple[str, dict[str, Any], str]] = [
    ("bin", {"padding": "none"}, "remove it, or name a format that has it: arrow, easydel, hf_d"),
    ("pickle", {"padding_side": "left"}, r"write `packing: \{padding_side: ...\}`, for it is a f"),
    ("parquet", {"columns": []}, "`attention_mask: false` leaves out that column"),
    ("jsonl", {"attention_mask": False}, "write `columns:` without attention_mask"),
]
"""Keys that belong to other formats, or to packing."""


@pytest.mark.parametrize(("format_", "options", "said"), [*REFUSED, *ELSEWHERE])
def test_an_option_that_cannot_be_is_refused(
    format_: str, options: dict[str, Any], said: str, tmp_path: Path
):
    with pytest.raises(ConfigError, match=rf"exports.*{said}"):
        declare(tmp_path, exports=[{"format": format_, **options}], split=SPLIT)


def test_every_option_of_every_format_is_in_the_table():
    options = {(name, option) for name in FORMATS for option in FORMATS[name].options.model_fields}

    assert {(name, option) for name, given, _ in REFUSED for option in given} == options

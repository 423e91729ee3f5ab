"""Options that a format cannot have are refused when the dataset is declared."""

from pathlib import Path
from typing import Any

import pytest

from tokflow.errors import ConfigError
from tokflow_tests.tiny import declare

REFUSED = [
    ("datatrove", {"tokens_per_file": 0}, "tokens_per_file: expected 1 or more, found 0"),
    ("datatrove", {"tokenizer_name_or_path": "a|b"}, r"without \|.*found 'a\|b'"),
    ("datatrove", {"tokenizer_name_or_path": "a\nb"}, r"in one line.*found 'a\\nb'"),
    ("easydel", {"sequences_per_group": 0}, "sequences_per_group: expected 1 or more, found 0"),
    ("hf_dataset", {"columns": ["tokens"]}, "columns: expected a choice of"),
    ("hf_dataset", {"columns": ["seq_lengths"]}, "add `padding: false`"),
    ("hf_dataset", {"megabytes_per_file": 0}, "megabytes_per_file: expected 1 or more, found 0"),
    ("jsonl", {"compression_level": 3}, "expected none, for nothing is compressed, found 3"),
    ("jsonl", {"compression": "gz", "compression_level": 10}, "expected 1 to 9, found 10"),
    ("jsonl", {"compression": "zst", "compression_level": 0}, "expected 1 to 22, found 0"),
    ("jsonl", {"columns": ["labels", "labels"]}, "columns: expected each column once"),
    ("litdata", {"block_size": 0}, "block_size: expected 1 or more, found 0"),
    ("litdata", {"chunk_bytes": 0}, "chunk_bytes: expected 1 or more, found 0"),
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
    ("llmc", {"tokens_per_file": 0}, "tokens_per_file: expected 1 or more, found 0"),
    ("llmc", {"prefix": "../x"}, r"prefix: expected letters.*found '../x'"),
    ("llmc", {"prefix": ""}, r"prefix: expected letters.*found ''"),
    ("mds", {"size_limit": 2**32}, "size_limit: expected 1 to 4,294,967,295, which uint32 counts"),
    ("mds", {"columns": {"s": "segment_ids"}}, "columns: expected named columns: one of token_ids"),
    ("mds", {"columns": {"a": "token_ids", "b": "token_ids"}}, "of other fields one at most"),
    ("mds", {"columns": {"": "token_ids"}}, "columns: expected named columns"),
    ("mds", {"columns": {"a": "tokens"}}, "columns.a: expected one of token_ids, segment_ids"),
    ("mds", {"hashes": ["crc32"]}, r"hashes\[0\]: expected .*found 'crc32'"),
    (
        "mds",
        {"compression_level": 3},
        "compression_level: expected none, for nothing is compressed",
    ),
    ("megatron", {"prefix": "a/b"}, "becomes a file"),
    ("megatron", {"key": ".."}, "becomes a file"),
    ("megatron", {"key": ""}, "becomes a file"),
    ("npy", {"sequences_per_file": 2}, "sequences_per_file: expected nothing.*`layout: stream`"),
    ("npy", {"layout": "sequences", "tokens_per_file": 2}, "tokens_per_file: expected nothing"),
    ("npy", {"layout": "sequences", "eos": "first"}, "eos: expected nothing.*found 'first'"),
    ("npy", {"tokens_per_file": 0}, "tokens_per_file: expected 1 or more"),
    ("npy", {"prefix": "a/b"}, "prefix: expected letters"),
    ("webdataset", {"sequences_per_file": 0}, "expected 1 to 100,000,000.*found 0"),
    (
        "webdataset",
        {"sequences_per_file": 100_000_001},
        "expected 1 to 100,000,000, for a member's name has eight digits",
    ),
    ("webdataset", {"compression_level": 10}, "expected 1 to 9, found 10"),
    (
        "webdataset",
        {"compression": "none", "compression_level": 1},
        "nothing is compressed, found 1",
    ),
    ("webdataset", {"compression": "zst"}, "expected one of gz, none, found 'zst'"),
]


@pytest.mark.parametrize(("format_", "options", "said"), REFUSED)
def test_an_option_that_cannot_be_is_refused(
    format_: str, options: dict[str, Any], said: str, tmp_path: Path
):
    with pytest.raises(ConfigError, match=rf"exports\[0\].*{said}"):
        declare(tmp_path, exports=[{"format": format_, **options}])

"""Options of exports, presets among them: what they stand for, and those that are refused when the
dataset is declared."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.verify.export import verify_export
from tokflow.errors import ConfigError
from tokflow.exports import FORMATS
from tokflow.exports.config import PRESETS, ExportConfig
from tokflow.exports.format import Extra
from tokflow.exports.options import ShardOptions
from tokflow.pipeline.yaml_schema import yaml_schema
from tokflow_tests.chats import CHATS, chat_dataset
from tokflow_tests.exports.exporting import read
from tokflow_tests.outputs import parts, stored
from tokflow_tests.tiny import build, declare

SPLIT = {"parts": {"train": {"documents": 1}, "validation": {"start": 1}}}

SHARDS: list[tuple[dict[str, Any], str]] = [
    ({"shards": 0}, "shards"),
    ({"shards": "4"}, "shards"),
    ({"shard_size": 0}, "shard_size"),
    ({"shard_size": "much"}, "shard_size"),
    ({"shard_size": 1.5}, "shard_size"),
    ({"shards": 2, "shard_size": 9}, "shards"),
]
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "parquet": [
        *SHARDS,
        ({"rename": {"labels": "x"}}, "rename"),
        ({"rename": {"input_ids": "segment_ids"}}, "rename"),
        ({"rename": {"input_ids": "a/b"}}, "rename.input_ids"),
    ],
    "arrow": [({"padding": "no"}, "padding")],
    "easydel": [({"attention_mask": 0}, "attention_mask"), ({"padding": 1}, "padding")],
    "jsonl": [
        ({"padding": 0}, "padding"),
        ({"columns": ["labels", "labels"]}, "columns"),
        ({"compression_level": 3}, "compression_level"),
        ({"compression": "gz", "compression_level": 10}, "compression_level"),
        ({"compression": "zst", "compression_level": 0}, "compression_level"),
    ],
    "bin": [
        ({"names": {"validaton": "v.bin"}}, "names"),
        ({"names": {"train": "VAL.bin", "validation": "val.bin"}}, "names"),
        ({"names": {"train": "a/b.bin"}}, "names.train"),
        ({"names": {"train": ".bin"}}, "names.train"),
        ({"names": {"train": "tr"}}, "names.train"),
        ({"names": {"train": 5}}, "names.train"),
    ],
    "datatrove": [
        ({"tokenizer_name_or_path": "a|b"}, "tokenizer_name_or_path"),
        ({"tokenizer_name_or_path": "a\nb"}, "tokenizer_name_or_path"),
    ],
    "hf_dataset": [
        ({"columns": ["tokens"]}, "columns[0]"),
        ({"columns": ["seq_lengths"]}, "columns"),
    ],
    "litdata": [({"compression": "zstd", "compression_level": 23}, "compression_level")],
    "webdataset": [({"compression_level": 10}, "compression_level")],
    "llmc": [
        ({"prefix": "../x"}, "prefix"),
        ({"prefix": ""}, "prefix"),
        ({"names": {"train": "a/b.bin"}}, "names.train"),
    ],
    "npy": [
        *SHARDS,
        ({"prefix": "a/b"}, "prefix"),
        ({"names": {"train": "../x.npy"}}, "names.train"),
        ({"layout": "sequences", "eos": "first"}, "eos"),
    ],
    "megatron": [({"prefix": "a/b"}, "prefix"), ({"key": ".."}, "key")],
    "mds": [
        ({"compression_level": 3}, "compression_level"),
        ({"shard_size": "4GiB"}, "shard_size"),
        ({"columns": {"s": "segment_ids"}}, "columns"),
        ({"columns": {"a": "token_ids", "b": "token_ids"}}, "columns"),
        ({"columns": {"": "token_ids"}}, "columns"),
    ],
    "pickle": [({"pad_id": 2**31}, "pad_id")],
}
"""Options by format, and the one that is named; those that types alone do not refuse."""


@pytest.mark.parametrize("name", REFUSED)
def test_an_option_that_cannot_be_is_refused_by_its_name(name: str, tmp_path: Path):
    for options, where in REFUSED[name]:
        with pytest.raises(ConfigError) as raised:
            declare(tmp_path, exports=[{"format": name, **options}], split=SPLIT)

        named = f"test: exports[0].{where}", f"test: exports: {name}: {where}"
        assert raised.value.where in named


@pytest.mark.parametrize(
    ("format_", "options", "remedy"),
    [
        ("bin", {"padding": "none"}, "arrow, easydel, hf_dataset, jsonl, parquet"),
        ("pickle", {"padding_side": "left"}, "`packing: {padding_side: ...}`"),
        ("easydel", {"columns": []}, "`attention_mask: false`"),
        ("parquet", {"attention_mask": False}, "`columns:` without attention_mask"),
    ],
)
def test_of_a_key_of_other_formats_or_of_packing_it_is_said_where_it_belongs(
    format_: str, options: dict[str, Any], remedy: str, tmp_path: Path
):
    with pytest.raises(ConfigError) as raised:
        declare(tmp_path, exports=[{"format": format_, **options}])

    assert remedy in raised.value.remedy


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


@pytest.mark.parametrize("options", [{"shard_size": 1}, {"shards": 200_000}])
def test_more_files_than_the_digits_number_are_refused(options: dict[str, int]):
    ShardOptions(**options).check_num_files(100_000)

    with pytest.raises(ConfigError) as raised:
        ShardOptions(**options).check_num_files(100_001)

    assert (raised.value.where, raised.value.found) == (*options, "100,001")


def test_an_extra_that_is_missing_is_named_and_one_that_is_there_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "half_installed.py").write_text("import no_such_package_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    half = Extra(name="lance", module="half_installed")

    with pytest.raises(ConfigError) as caught:
        Extra(name="lance", module="no_such_package_at_all").load()
    half.check(where="exports: lance")  # imports nothing
    with pytest.raises(ModuleNotFoundError, match="no_such_package_at_all"):
        half.load()

    assert (caught.value.where, caught.value.found) == ("lance", "none")


@pytest.mark.parametrize("name", [name for name, format_ in FORMATS.items() if format_.extra])
def test_a_dataset_whose_export_needs_a_missing_extra_is_refused_when_it_is_declared(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, FORMATS[name].extra.module, None)

    with pytest.raises(ConfigError) as caught:
        declare(tmp_path, {"a.jsonl": ["ab"]}, exports=["bin", name])

    assert (caught.value.where, caught.value.found) == ("test: exports[1]", "none")


TRL = {"format": "hf_dataset", "padding": "none", "columns": ["labels", "seq_lengths"]}


def plain_of(entry: dict[str, Any]) -> dict[str, Any]:
    return ExportConfig.read(entry, where="").plain


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_stands_for_plain_options(name: str):
    plain = plain_of({"preset": name})

    assert plain == {"name": name, **PRESETS[name]}
    assert plain_of(plain) == plain


@pytest.mark.parametrize(
    "beside",
    [
        {"columns": ["labels"]},
        {"name": "sft"},
        {"format": "jsonl", "compression": "gz"},
        {"packing": {"strategy": "pool"}},
    ],
)
def test_an_option_beside_a_preset_overrides_it(beside: dict[str, Any]):
    assert plain_of({"preset": "trl", **beside}) == {"name": "trl", **TRL, **beside}


def test_fields_of_packing_beside_a_preset_are_added_to_its_own():
    plain = plain_of({"preset": "torchtitan", "packing": {"sequence_length": 8}})

    assert plain["packing"] == {"label_token": True, "sequence_length": 8}


@pytest.mark.parametrize("name", ["trll", "verl", None, 5])
def test_an_unknown_preset_is_refused_with_the_names(name: object, tmp_path: Path):
    with pytest.raises(ConfigError) as error:
        declare(tmp_path, exports=["bin", {"preset": name}])

    assert error.value.where.endswith("exports[1].preset")
    assert all(known in str(error.value) for known in PRESETS)


def test_the_schema_shows_what_a_preset_stands_for():
    schema = json.dumps(yaml_schema())

    for of in ("trl", "megatron-bridge"):
        assert f'"const": "{of}"' in schema
    assert "{format: hf_dataset, columns: [labels, seq_lengths], padding: none}" in schema


def test_every_token_of_chats_is_in_the_export_of_each_preset(tmp_path: Path):
    exports = [{"preset": name} for name in PRESETS]
    packing = {"strategy": "best_fit", "sequence_length": 128}
    dataset = chat_dataset(tmp_path, CHATS, exports=exports, packing=packing)

    built = build(dataset)

    for name in PRESETS:
        made, part = built.export(name), parts(dataset, name)["train"]
        assert made.manifest.counts["train.num_tokens"] == part.num_tokens
        assert made.manifest.counts["train.num_dropped_tokens"] == 0

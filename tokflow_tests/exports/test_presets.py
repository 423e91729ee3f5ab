"""A preset is the options of a trainer, which plain options beside it override."""

import json
from pathlib import Path
from typing import Any

import pytest

from tokflow.errors import ConfigError
from tokflow.exports.config import PRESETS, ExportConfig
from tokflow.pipeline.yaml_schema import yaml_schema
from tokflow_tests.chats import CHATS, chat_dataset
from tokflow_tests.outputs import parts
from tokflow_tests.tiny import build, declare

TRL = {"format": "hf_dataset", "padding": "none", "columns": ["labels", "seq_lengths"]}


def plain_of(entry: dict[str, Any]) -> dict[str, Any]:
    return ExportConfig.read(entry, where="").plain


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_stands_for_plain_options(name: str):
    plain = plain_of({"preset": name})

    assert plain == {"name": name, **PRESETS[name]}
    assert plain_of(plain) == plain


@pytest.mark.parametrize(
    ("beside", "changed"),
    [
        ({"columns": ["labels"]}, {"columns": ["labels"]}),
        ({"name": "sft"}, {"name": "sft"}),
        ({"format": "jsonl", "compression": "gz"}, {"format": "jsonl", "compression": "gz"}),
        ({"packing": {"strategy": "pool"}}, {"packing": {"strategy": "pool"}}),
    ],
)
def test_an_option_beside_a_preset_overrides_it(beside: dict[str, Any], changed: dict[str, Any]):
    assert plain_of({"preset": "trl", **beside}) == {"name": "trl", **TRL, **changed}


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

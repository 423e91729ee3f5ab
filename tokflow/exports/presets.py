"""Presets: the options of an export, by the name of the trainer that reads it.

A preset is replaced by its options where the config is read, so that nothing else knows of it.
"""

from collections.abc import Mapping
from typing import Any

from tokflow.errors import ConfigError, nearest

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "axolotl": {
        "format": "parquet",
        "columns": ["attention_mask", "labels"],
        "padding": "none",
        "packing": {"strategy": "one_document"},
    },
    "megatron-bridge": {
        "format": "parquet",
        "columns": ["next_loss_mask", "seq_start_id"],
        "rename": {"next_loss_mask": "loss_mask"},
        "padding": "none",
    },
    "torchtitan": {
        "format": "npy",
        "layout": "sequences",
        "packing": {"label_token": True},
    },
    "torchtune": {
        "format": "parquet",
        "columns": ["labels"],
        "rename": {"input_ids": "tokens"},
        "padding": "none",
        "packing": {"strategy": "one_document"},
    },
    "trl": {
        "format": "hf_dataset",
        "columns": ["labels", "seq_lengths"],
        "padding": "none",
    },
}
"""The options that each preset stands for. axolotl and torchtune pack by themselves, and would take
a row of several documents for one; the others are told where each begins."""


def with_options(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an export of a YAML with the options of its preset in place of that.

    Options beside the preset, and fields of packing, override its own; its name, unless there is
    another, becomes that of the export.

    Raises: ConfigError for a preset that does not exist.
    """
    given = dict(entry)
    name = given.pop("preset")
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(
            where="preset",
            expected=f"one of {', '.join(PRESETS)}",
            found=repr(name),
            remedy=nearest(name, [*PRESETS]) or "name one of them, or a `format:`",
        )
    options = {"name": name, **PRESETS[name], **given}
    packing, own = given.get("packing"), PRESETS[name].get("packing")
    if own and isinstance(packing, Mapping):
        options["packing"] = {**own, **packing}
    return options


def in_one_line(options: Mapping[str, Any]) -> str:
    """Return options as a line of YAML: `{format: parquet, padding: none}`."""
    import yaml  # late: no worker needs it

    text: str = yaml.safe_dump(dict(options), default_flow_style=True, sort_keys=False, width=10**6)
    return text.strip()

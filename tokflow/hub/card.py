"""The README.md of a dataset repository: configs for `load_dataset`, and a section about each
export between two comments. Whatever else stands in it stays as it is."""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import yaml

from tokflow.errors import ConfigError
from tokflow.hub.target import Target
from tokflow.raw.source_splits import CARD, card_of, divided

NEW_HEADER = "tags:\n- tokflow\n"

_CONFIGS = re.compile(r"^[\"']?configs\b.*\n(?:(?:[ \t\r]*\n|#.*\n)*[ \t-].*\n)*", re.MULTILINE)
"""Lines of `configs` in a header, without blank lines and comments behind it."""


def merged_card(text: str, target: Target, config: Mapping[str, Any], section: str) -> str:
    """Return a card with the config and the section of an export put in, or in place of those that
    an earlier push wrote; `text` is empty where there is no card.

    Of a card that has them, the same text comes back.

    Raises: ConfigError for a config of that name that no push wrote, and for a header that is no
    YAML.
    """
    header, body = divided(text) if text else (NEW_HEADER, f"\n# {target.name.partition('/')[2]}\n")
    folder = target.folder or "/"
    begin = f"<!-- tokflow: {folder}; each push writes this anew, up to its end -->"
    end = f"<!-- end of tokflow: {folder} -->"
    own = re.compile(rf"{re.escape(begin)}((?!{re.escape(begin)}).)*?{re.escape(end)}", re.DOTALL)
    is_ours = own.search(body) is not None
    header = _with_config(header, target, config, is_ours=is_ours)
    section = re.sub(r"<!--( (?:end of )?tokflow:)", r"&lt;!--\1", section)  # of a name or template
    block = f"{begin}\n{section.strip()}\n{end}"
    body = own.sub(lambda _: block, body, count=1) if is_ours else f"{body.rstrip()}\n\n{block}\n"
    return f"---\n{header}---\n{body}"


def _with_config(header: str, target: Target, config: Mapping[str, Any], *, is_ours: bool) -> str:
    """Return the YAML with a config; all lines but those of `configs` stay as they are, unless
    they refer to it, as an alias does to its anchor. `is_ours`: a push wrote that of its name."""
    fields = card_of(f"---\n{header}---\n", where=target.url)
    configs = fields.get("configs") or []
    are_configs = isinstance(configs, list) and all(isinstance(of, dict) for of in configs)
    if not are_configs or (not fields and yaml.safe_load(header)):
        raise ConfigError(
            where=f"{target.url}: {CARD}",
            expected="fields by name, among them a list of configs, each with its config_name",
            found=f"configs: {configs!r}" if fields else repr(header[:40]),
            remedy="correct the card; https://huggingface.co/docs/hub/datasets-manual-configuration",
        )
    same = [of for of in configs if str(of.get("config_name")) == target.config]
    if not is_ours and any(of != config for of in same):
        raise ConfigError(
            where=f"{target.url}: {CARD}",
            expected=f"no config {target.config!r}, or that of an earlier push",
            found="one that somebody else wrote, or of another folder",
            remedy=f"push into a folder, hf://datasets/{target.name}/FOLDER, which is a config of "
            "its own, or remove it from the card",
        )
    changed = [config if of in same else of for of in configs] + ([] if same else [config])
    if changed == configs:
        return header
    dumped = yaml.safe_dump({"configs": changed}, sort_keys=False, allow_unicode=True, width=1000)
    merged, num = _CONFIGS.subn(lambda _: dumped, header)
    merged = merged if num else header + dumped
    expected = {**fields, "configs": changed}
    with suppress(yaml.YAMLError):
        if num == ("configs" in fields) and yaml.safe_load(merged) == expected:
            return merged
    return yaml.safe_dump(expected, sort_keys=False, allow_unicode=True)

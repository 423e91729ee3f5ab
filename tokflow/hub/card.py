"""The README.md of a dataset repository: configs for `load_dataset`, and a section about each
export between two comments. Whatever else stands in it stays as it is."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import yaml

from tokflow.errors import ConfigError
from tokflow.hub.target import Target
from tokflow.raw.source_splits import CARD, card_of, lines_of

NEW_HEADER = {"tags": ["tokflow"]}


def merged_card(text: str, target: Target, config: Mapping[str, Any], section: str) -> str:
    """Return a card with the config and the section of an export put in, or in place of those that
    an earlier push wrote; `text` is empty where there is no card.

    Of a card that has them, the same text comes back.

    Raises: ConfigError for a config of that name that no push wrote, and for a header that is no
    YAML.
    """
    header, body = _divided(text)
    if not text:
        header = yaml.safe_dump(NEW_HEADER)
        body = f"\n# {target.name.partition('/')[2]}\n"
    own = _section_of(target)
    _check_ours(text, target, config, is_ours=own.search(body) is not None)
    header = _with_config(header, config)
    begin, end = _marks(target)
    section = re.sub(r"<!--( (?:end of )?tokflow:)", r"&lt;!--\1", section)  # of a name or template
    block = f"{begin}\n{section.strip()}\n{end}"
    if own.search(body):
        body = own.sub(lambda _: block, body, count=1)
    else:
        body = f"{body.rstrip()}\n\n{block}\n"
    return f"---\n{header}---\n{body}"


def _divided(text: str) -> tuple[str, str]:
    """Return the lines between the first two of `---`, and what follows them."""
    lines = lines_of(text.removeprefix("\ufeff"))
    if lines[0].rstrip() != "---":
        return "", text
    ends = (number for number, line in enumerate(lines) if number and line.rstrip() == "---")
    end = next(ends, None)
    if end is None:
        return "", text
    return "".join(lines[1:end]), "".join(lines[end + 1 :])


def _marks(target: Target) -> tuple[str, str]:
    folder = target.folder or "/"
    return (
        f"<!-- tokflow: {folder}; each push writes this anew, up to its end -->",
        f"<!-- end of tokflow: {folder} -->",
    )


def _section_of(target: Target) -> re.Pattern[str]:
    begin, end = map(re.escape, _marks(target))
    return re.compile(rf"{begin}((?!{begin}).)*?{end}", re.DOTALL)


def _check_ours(text: str, target: Target, config: Mapping[str, Any], *, is_ours: bool) -> None:
    known = {str(of.get("config_name")): of for of in _configs(text, target)}
    there = known.get(target.config)
    if there is None or is_ours or there == config:
        return
    raise ConfigError(
        where=f"{target.url}: {CARD}",
        expected=f"no config {target.config!r}, or that of an earlier push",
        found="one that somebody else wrote, or of another folder",
        remedy=f"push into a folder, hf://datasets/{target.name}/FOLDER, which is a config of its "
        "own, or remove it from the card",
    )


def _configs(text: str, target: Target) -> list[dict[str, Any]]:
    header = _divided(text)[0]
    fields = card_of(text, where=target.url)
    configs = fields.get("configs") or []
    are_configs = isinstance(configs, list) and all(isinstance(of, dict) for of in configs)
    if are_configs and (fields or not yaml.safe_load(header)):
        return list(configs)
    raise ConfigError(
        where=f"{target.url}: {CARD}",
        expected="fields by name, among them a list of configs, each with its config_name",
        found=f"configs: {configs!r}" if fields else repr(header[:40]),
        remedy="correct the card; https://huggingface.co/docs/hub/datasets-manual-configuration",
    )


def _with_config(header: str, config: Mapping[str, Any]) -> str:
    """Return the YAML with a config; all lines but those of `configs` stay as they are, unless
    they refer to it, as an alias does to its anchor."""
    fields = yaml.safe_load(header) or {}
    configs = fields.get("configs") or []
    name = config["config_name"]
    changed = [config if of.get("config_name") == name else of for of in configs]
    changed += [config] if config not in changed else []
    if changed == configs:
        return header
    dumped = yaml.safe_dump({"configs": changed}, sort_keys=False, allow_unicode=True, width=1000)
    expected = {**fields, "configs": changed}
    node: Any = yaml.compose(header, Loader=yaml.SafeLoader)
    if node is None or not node.flow_style:
        lines = header.splitlines(keepends=True)
        start, stop = _lines_of(node, "configs", lines)
        with suppress(yaml.YAMLError):
            merged = "".join([*lines[:start], dumped, *lines[stop:]])
            if yaml.safe_load(merged) == expected:
                return merged
    return yaml.safe_dump(expected, sort_keys=False, allow_unicode=True)


def _lines_of(node: Any, name: str, lines: Sequence[str]) -> tuple[int, int]:
    """Return where the lines of a field begin and end, without comments behind it; both are the
    end of all lines where there is no such field."""
    starts = [key.start_mark.line for key, _ in node.value] if node is not None else []
    names = [key.value for key, _ in node.value] if node is not None else []
    if name not in names:
        return len(lines), len(lines)
    at = names.index(name)
    stop = [*starts, len(lines)][at + 1]
    while not lines[stop - 1].strip() or lines[stop - 1].startswith("#"):
        stop -= 1
    return starts[at], stop

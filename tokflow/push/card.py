"""The README.md of a dataset repository: configs for `load_dataset`, and a section about each
export between two comments. Whatever else stands in it stays as it is."""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import yaml

from tokflow.audit.ancestry import Ancestry
from tokflow.errors import ConfigError, CorruptOutputError, ForeignOutputError, MissingOutputError
from tokflow.exports import INDEX_NAME, Export
from tokflow.exports.reading import is_export
from tokflow.push.repository import Target
from tokflow.raw.hub_repository import CARD, card_of, divided
from tokflow.shown import counted, size
from tokflow.split.mixture import mixture_of
from tokflow.split.shuffle import shuffled_by
from tokflow.store.manifest import MANIFEST_NAME
from tokflow.store.store import StoredOutput
from tokflow.tokenizers.reference_version import described

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


EXAMPLE_LENGTH = 1024
"""Tokens of a row of a stream, in the lines that load it."""

INDEX_SPLIT = "index"

_LOADED = r"(/data)?-\d+-of-\d+\.(parquet|arrow|jsonl(\.\w+)?)|/shard_\d+\.tar"
"""Behind the name of a part: files of records that `load_dataset` reads by their suffix."""

_NUMBER = re.compile(r"\d+(?=-of-\d+\.[^/]+$|\.tar$)")


def card_config(export: Export, target: Target) -> dict[str, Any]:
    """Return the config of an export for a card: each part a split, with patterns that match its
    files and no others: `a-[0-9][0-9]-of-12.parquet` matches no file of a part called `a-b`, as
    `a-*` does.

    Of an export that `load_dataset` cannot read, which would take the index for its data, the index
    is the one split and is called so.
    """
    splits = _splits(export)
    if not splits and INDEX_NAME in export.manifest.files:
        splits = {"": (INDEX_SPLIT, [INDEX_NAME])}
    data_files = []
    for split, names in splits.values():
        patterns = {_NUMBER.sub(lambda digits: "[0-9]" * len(digits[0]), of) for of in names}
        data_files.append({"split": split, "path": [target.folder + of for of in sorted(patterns)]})
    return {"config_name": target.config, "data_files": data_files}


def _splits(export: Export) -> dict[str, tuple[str, list[str]]]:
    """Return what `datasets` calls each part whose files it reads, and the names of these: a split
    has no dash in its name."""
    found: dict[str, tuple[str, list[str]]] = {}
    taken: set[str] = set()
    for part in export.parts:
        split = part.replace("-", "_")
        while split in taken or (split != part and split in export.parts):
            split += "_"
        taken.add(split)
        regex = re.compile(f"{re.escape(export.file_name(part))}({_LOADED})")
        if names := [name for name in export.manifest.files if regex.fullmatch(name)]:
            found[part] = split, names
    return found


def card_section(export: Export, target: Target) -> str:
    """Return the text, in Markdown; the same export and store give the same text."""
    manifest = export.manifest
    about = export.format.description.replace("<", "&lt;")
    blocks = [f"## {manifest.dataset}, as {export.format_name}", f"{about}."]
    ancestry = Ancestry()
    recipes = _recipes(export, ancestry)
    facts = _facts(export, ancestry, recipes)
    blocks += ["\n".join(_table(export)), "\n".join(facts), *_loading(export, target)]
    if INDEX_NAME in manifest.files:
        blocks.append(f"`{target.folder}{INDEX_NAME}` has the raw file and row of each document.")
    made = f"Made by tokflow: fingerprint `{manifest.fingerprint}`. The recipe, of splits and\n"
    shown = yaml.safe_dump(recipes, sort_keys=False, allow_unicode=True, width=math.inf)
    return "\n\n".join(
        [*blocks, f"{made}tokens that of the first raw file:", f"```yaml\n{shown.strip()}\n```"]
    )


def _table(export: Export) -> Iterator[str]:
    names = ["num_tokens", "num_sequences", "num_padding", "num_documents"]
    names = [name for name in names if any(f"{p}.{name}" in export.counts for p in export.parts)]
    yield f"| part | {' | '.join(name.removeprefix('num_') for name in names)} |"
    yield f"|---{'|---:' * len(names)}|"
    for part in export.parts:
        numbers = (export.counts.get(f"{part}.{name}") for name in names)
        yield f"| {part} | {' | '.join('' if n is None else f'{n:,}' for n in numbers)} |"


def _facts(export: Export, ancestry: Ancestry, recipes: Mapping[str, Any]) -> Iterator[str]:
    manifest, details = export.manifest, export.manifest.details
    names = details.get("names", {})
    eos = "no EOS" if export.eos_id is None else f"EOS {export.eos_id:,} ends each document"
    tokenizer = f" {_code(names['tokenizer'])}," if "tokenizer" in names else ""
    yield f"* **Tokenizer**:{tokenizer} {export.vocab_size:,} ids, {export.dtype.name}; {eos}"
    with suppress(MissingOutputError, CorruptOutputError, ForeignOutputError):  # whole without
        saved = ancestry.tokenizer(export.stored)
        if saved is not None and (reference := saved.manifest.details.get("reference")):
            libraries = recipes.get("tokens", {}).get("libraries", {})
            yield f"* **Ids**: those of {described(reference, libraries)}"
    if "source" in names:
        yield f"* **Raw files**: {_code(names['source'])}"
    if (length := details.get("sequence_length")) is not None:
        yield f"* **Sequences** of {length if isinstance(length, dict) else f'{length:,}'} tokens"
    for part, (split, _) in _splits(export).items():
        if part != split:
            yield f"* **Split**: {part} is {split} for `datasets`"
    for name, seed in shuffled_by(manifest).items():
        yield f"* **Shuffled**: {name}, seed {seed}"
    for source, parts in details.get("mixture", {}).items():
        for part, of in parts.items():
            taken = f"{of['tokens']:,} tokens, {of['epochs']:g} epochs"
            yield f"* **Mixture**: {part} of {_code(source)}: {taken}"
    for name, commit in details.get("commits", {}).items():
        yield f"* **Made from** {_code(f'hf://datasets/{name}@{commit}')}"
    files = counted(len(manifest.files), "file")
    num_bytes = size(manifest.num_bytes)
    yield f"* **Size**: {num_bytes} in {files}; their sha256 are in `{MANIFEST_NAME}`"


def _loading(export: Export, target: Target) -> Iterator[str]:
    part, folder = export.parts[0], target.folder
    for split, _ in [*_splits(export).values()][:1]:
        config = "" if target.config == "default" else f"{target.config!r}, "
        rows = f"load_dataset({target.name!r}, {config}split={split!r}, streaming=True)"
        yield _python("from datasets import load_dataset", f"rows = {rows}")
    pattern = f", allow_patterns={folder + '*'!r}" if folder else ""
    inside = f" + {'/' + folder.rstrip('/')!r}" if folder else ""
    whole = f"snapshot_download({target.name!r}, repo_type='dataset'{pattern}){inside}"
    lines = [f"folder = {whole}"]
    if export.is_read:
        length = "" if export.layout.is_packed else f", sequence_length={EXAMPLE_LENGTH}"
        lines.insert(0, "from tokflow.loaders import open_rows")
        lines.append(f"rows = open_rows(folder, part={part!r}{length})")
        lines.append("batch = rows[:8]  # input_ids, labels and so on")
    yield _python("from huggingface_hub import snapshot_download", *lines)


def _python(*lines: str) -> str:
    return "\n".join(["```python", *lines, "```"])


def _recipes(export: Export, ancestry: Ancestry) -> dict[str, Any]:
    """Return the recipes of an export, and of what its first raw file became on the way to it, by
    stage, so far as the store has it."""
    recipes = {}
    with suppress(MissingOutputError, CorruptOutputError, ForeignOutputError):  # whole without them
        for output in _lineage(export.stored, ancestry):
            manifest = output.manifest
            recipes[manifest.stage] = {"version": manifest.version, **_plain(manifest.config)}
    return recipes


def _lineage(output: StoredOutput, ancestry: Ancestry) -> Iterator[StoredOutput]:
    """Yield an output, and what its first raw file became on the way to it; of a mixture no further
    than the mixture."""
    yield output
    if mixture_of(output.manifest.config) is None:
        first = sorted(output.manifest.parents)[:1]
        for parent in list(ancestry.parents(output, first).values())[:1]:
            yield from _lineage(parent, ancestry)
    if is_export(output.manifest) and (tokenizer := ancestry.tokenizer(output)) is not None:
        yield tokenizer.stored


def _plain(value: Any) -> Any:
    """Return a config without the fields that are not set."""
    if isinstance(value, dict):
        return {name: _plain(of) for name, of in value.items() if of is not None}
    return [_plain(of) for of in value] if isinstance(value, list) else value


def _code(text: str) -> str:
    """Return a name as code, on one line, whatever it has in it."""
    text = " ".join(text.split()).replace("`", "'").replace("-->", "->")
    return f"`{text}`"

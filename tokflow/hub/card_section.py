"""Text of a card about one export: counts, tokenizer, recipe, and lines that load it."""

import math
from collections.abc import Iterator
from typing import Any

import yaml

from tokflow.audit.ancestry import Ancestry
from tokflow.errors import CorruptOutputError, ForeignOutputError, MissingOutputError
from tokflow.exports import INDEX_NAME, Export
from tokflow.hub.part_files import is_loaded, splits
from tokflow.hub.target import Target
from tokflow.shown import counted, size
from tokflow.split.mixture import mixture_of
from tokflow.split.shuffle import shuffled_by
from tokflow.store.manifest import MANIFEST_NAME
from tokflow.store.store import StoredOutput

EXAMPLE_LENGTH = 1024
"""Tokens of a row of a stream, in the lines that load it."""


def card_section(export: Export, target: Target) -> str:
    """Return the text, in Markdown; the same export and store give the same text."""
    manifest = export.manifest
    about = export.format.description.replace("<", "&lt;")
    lines = [f"## {manifest.dataset}, as {export.format_name}", "", f"{about}."]
    lines += ["", *_table(export), "", *_facts(export), "", *_loading(export, target)]
    if INDEX_NAME in manifest.files:
        lines += ["", f"`{target.folder}{INDEX_NAME}` has the raw file and row of each document."]
    return "\n".join([*lines, "", *_recipe(export)])


def _table(export: Export) -> Iterator[str]:
    names = ["num_tokens", "num_sequences", "num_padding", "num_documents"]
    names = [name for name in names if any(f"{p}.{name}" in export.counts for p in export.parts)]
    yield f"| part | {' | '.join(name.removeprefix('num_') for name in names)} |"
    yield f"|---{'|---:' * len(names)}|"
    for part in export.parts:
        numbers = (export.counts.get(f"{part}.{name}") for name in names)
        yield f"| {part} | {' | '.join('' if n is None else f'{n:,}' for n in numbers)} |"


def _facts(export: Export) -> Iterator[str]:
    manifest, details = export.manifest, export.manifest.details
    names = details.get("names", {})
    eos = "no EOS" if export.eos_id is None else f"EOS {export.eos_id:,} ends each document"
    tokenizer = f" {_code(names['tokenizer'])}," if "tokenizer" in names else ""
    yield f"* **Tokenizer**:{tokenizer} {export.vocab_size:,} ids, {export.dtype.name}; {eos}"
    if "source" in names:
        yield f"* **Raw files**: {_code(names['source'])}"
    if (length := details.get("sequence_length")) is not None:
        yield f"* **Sequences** of {length if isinstance(length, dict) else f'{length:,}'} tokens"
    for part, split in splits(export).items():
        if part != split and is_loaded(export):
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
    part = export.parts[0]
    if is_loaded(export):
        config = "" if target.config == "default" else f"{target.config!r}, "
        split = splits(export)[part]
        yield "```python"
        yield "from datasets import load_dataset"
        yield f"rows = load_dataset({target.name!r}, {config}split={split!r}, streaming=True)"
        yield "```"
        yield ""
    pattern = f", allow_patterns={target.folder + '*'!r}" if target.folder else ""
    inside = f" + {'/' + target.folder.rstrip('/')!r}" if target.folder else ""
    yield "```python"
    yield "from huggingface_hub import snapshot_download"
    if export.is_read:
        yield "from tokflow.loaders import open_rows"
    whole = f"snapshot_download({target.name!r}, repo_type='dataset'{pattern})"
    yield f"folder = {whole}{inside}"
    if export.is_read:
        length = "" if export.layout.is_packed else f", sequence_length={EXAMPLE_LENGTH}"
        yield f"rows = open_rows(folder, part={part!r}{length})"
        yield "batch = rows[:8]  # input_ids, labels and so on"
    yield "```"


def _recipe(export: Export) -> Iterator[str]:
    yield f"Made by tokflow: fingerprint `{export.manifest.fingerprint}`. The recipe, of splits and"
    yield "tokens that of the first raw file:"
    yield ""
    yield "```yaml"
    recipes = {found.manifest.stage: _fields(found) for found in _lineage(export)}
    yield yaml.safe_dump(recipes, sort_keys=False, allow_unicode=True, width=math.inf).strip()
    yield "```"


def _lineage(export: Export) -> Iterator[StoredOutput]:
    """Yield an export, and what its first raw file became on the way to it, so far as the store has
    it; of a mixture no further than the mixture."""
    ancestry, of_export = Ancestry(), export.stored
    yield (output := of_export)
    try:
        while output.manifest.parents and mixture_of(output.manifest.config) is None:
            first = min(output.manifest.parents)
            is_export = output.manifest.stage == "export"
            parents = ancestry.parents(output, [first] if is_export else None)
            if not parents:
                break
            yield (output := parents[0])
        if (tokenizer := ancestry.tokenizer(of_export)) is not None:
            yield tokenizer.stored
    except (MissingOutputError, CorruptOutputError, ForeignOutputError):
        return  # the export is whole without them


def _fields(found: StoredOutput) -> dict[str, Any]:
    return {"version": found.manifest.version, **_plain(found.manifest.config)}


def _plain(value: Any) -> Any:
    """Return a config without the fields that are not set."""
    if isinstance(value, dict):
        return {name: _plain(of) for name, of in value.items() if of is not None}
    return [_plain(of) for of in value] if isinstance(value, list) else value


def _code(text: str) -> str:
    """Return a name as code, on one line, whatever it has in it."""
    text = " ".join(text.split()).replace("`", "'").replace("-->", "->")
    return f"`{text}`"

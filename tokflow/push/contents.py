"""Contents of a dataset repository: its README.md, with configs for `load_dataset` and a section
about each export between two comments, beside whatever else stands in it; and documents that are
excluded now, which it has since an earlier push."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from tokflow.audit.ancestry import Ancestry, lineage
from tokflow.audit.verify.excluded import Document, entries_of
from tokflow.errors import ConfigError, CorruptOutputError, ForeignOutputError, MissingOutputError
from tokflow.exports import INDEX_NAME, Export
from tokflow.formatting import counted
from tokflow.push.repository import Target
from tokflow.raw.hub_repository import CARD, HubFile, card_of, divided, read_small
from tokflow.record.export_card import read_card
from tokflow.selection.left_out import EXCLUDED, LEFT_OUT_NAME
from tokflow.selection.stage import SELECTION
from tokflow.split.mixed_split import source_and_key
from tokflow.store import manifest, store, tables

NEW_HEADER = "tags:\n- tokflow\n"

_CONFIGS = re.compile(r"^[\"']?configs\b.*\n(?:(?:[ \t\r]*\n|#.*\n)*[ \t-].*\n)*", re.MULTILINE)
"""Lines of `configs` in a header, without blank lines and comments behind it."""


OF_HEADER = ("license", "language", "pretty_name")
"""Fields of the header that the card beside an export can have, each with a value on one line."""


def merged_card(
    text: str,
    target: Target,
    config: Mapping[str, Any],
    section: str,
    fields: Mapping[str, Any] | None = None,
) -> str:
    """Return a card with the config, the section and the `fields` of an export put in, or in place
    of those that an earlier push wrote; `text` is empty where there is no card. A field that
    somebody else wrote stays.

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
    header = _with_fields(header, fields or {}, folder)
    section = re.sub(r"<!--( (?:end of )?tokflow:)", r"&lt;!--\1", section)  # of a name or template
    block = f"{begin}\n{section.strip()}\n{end}"
    body = own.sub(lambda _: block, body, count=1) if is_ours else f"{body.rstrip()}\n\n{block}\n"
    return f"---\n{header}---\n{body}"


def _with_fields(header: str, fields: Mapping[str, Any], folder: str) -> str:
    """Return the YAML with fields on lines that a comment marks as of pushes into a folder; as it
    was where no line can be added."""
    merged, mark = header, f" # tokflow: {folder}\n"
    for name in OF_HEADER:
        merged = re.sub(rf"^{name}: .*{re.escape(mark)}", "", merged, flags=re.MULTILINE)
        if name in fields and not re.search(rf"^[\"']?{name}\b", merged, re.MULTILINE):
            merged += f"{name}: {json.dumps(fields[name], ensure_ascii=False)}{mark}"
    with suppress(yaml.YAMLError):
        yaml.safe_load(merged)
        return merged
    return header


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
    """Return the text of the card beside an export, with what concerns the hub behind it."""
    body = divided(read_card(export.stored))[1].partition("\n## ")
    renamed = [
        f"* **Split**: {part} is {split} for `datasets`"
        for part, (split, _) in _splits(export).items()
        if part != split
    ]
    return "\n\n".join(["".join(body[1:]).strip(), *renamed, *_loading(export, target)])


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


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldThere:
    """A build of an earlier push that has documents which are excluded now."""

    url: str
    """Its folder."""
    commit: str
    """The head of the branch; earlier commits can have them, too."""
    num_documents: int
    first: str
    """One of them, as `a.jsonl, row 1`."""
    is_replaced: bool
    """Whether this push is into its folder."""

    def __str__(self) -> str:
        remedy = "this push replaces it" if self.is_replaced else "push that export again"
        documents = counted(self.num_documents, "excluded document")
        return (
            f"{self.url} has {documents}, such as {self.first}: {remedy}; commit "
            f"{self.commit[:7]} and those before it keep them until the history is squashed"
        )


def find_held(
    export: store.StoredOutput, there: Mapping[str, HubFile], target: Target
) -> Iterator[HeldThere]:
    """Yield the builds in a branch that have documents which lists exclude from an export.

    A document is known by raw file and row, as the index of a build there has it. Nothing is
    yielded where the store of the export is not here. Raises: as `read_small`.
    """
    before = {}
    for path in sorted(path for path in there if path.endswith(manifest.MANIFEST_NAME)):
        with suppress(ValueError, LookupError, TypeError, RecursionError):  # of somebody else
            fields = manifest.plain_json(read_small(there[path]))
            if fields["fingerprint"] != export.manifest.recipe.fingerprint:
                dataset = None if "mixture" in fields["details"] else str(fields["dataset"])
                before[path.removesuffix(manifest.MANIFEST_NAME)] = dataset
    excluded = list[Document]()
    with suppress(MissingOutputError, CorruptOutputError, ForeignOutputError):
        excluded += _excluded_from(export) if before else ()
    for folder, dataset in before.items() if excluded else ():
        index = there.get(folder + INDEX_NAME)
        entries = entries_of([_read_index(index)], excluded, dataset) if index else []
        names = (of["raw_file"] for of in entries)
        if dataset is None:  # each pass of a mixture has a name of its own
            names = ("/".join(source_and_key(of)) for of in names)
        rows = (of["row"] for of in entries)
        documents = sorted({*zip(names, rows, strict=True)})
        if index and documents:
            yield HeldThere(
                url=replace(target, folder=folder).url,
                commit=index.commit,
                num_documents=len(documents),
                first=f"{documents[0][0]}, row {documents[0][1]:,}",
                is_replaced=folder == target.folder,
            )


def _excluded_from(export: store.StoredOutput) -> Iterator[Document]:
    """Yield the documents that lists exclude from what an export was made from. Raises: as
    `lineage`."""
    ancestry = Ancestry()
    for output in lineage(export, ancestry):
        rules: Any = output.manifest.details.get("rules", ())
        numbers = [at for at, rule in enumerate(rules) if rule.startswith(EXCLUDED)]
        if output.manifest.recipe.stage == SELECTION.name and numbers:
            table, shard = tables.read_table(output.file(LEFT_OUT_NAME)), ancestry.shard(output)
            is_excluded = np.isin(tables.to_numpy(table["rule"]), numbers)
            document = tables.to_numpy(table["document"])[is_excluded]
            rows = tables.to_numpy(shard.documents(["row"])["row"])[document]
            files, own = shard.origins.of_rows(rows)
            for raw_file, row in zip(files.to_pylist(), own.tolist(), strict=True):
                yield shard.manifest.dataset, raw_file, row


def _read_index(file: HubFile) -> pa.Table:
    import pyarrow.parquet as pq  # late: it imports ssl and every file system

    with pq.ParquetFile(pa.BufferReader(read_small(file)), read_dictionary=["raw_file"]) as index:
        return index.read(columns=["raw_file", "row"])

"""Files of an export that `datasets` reads, by part, as a card declares them."""

import re
from collections.abc import Iterable
from typing import Any

from tokflow.exports import INDEX_NAME, Export
from tokflow.hub.target import Target

_LOADED = r"(/data)?-\d+-of-\d+\.(parquet|arrow|jsonl(\.\w+)?)|/shard_\d+\.tar"
"""Behind the name of a part: files of records that `load_dataset` reads by their suffix."""

INDEX_SPLIT = "index"


def card_config(export: Export, target: Target) -> dict[str, Any]:
    """Return the config of an export for a card: each part a split, with patterns that match its
    files and no others.

    Of an export that `load_dataset` cannot read, which would take the index for its data, the index
    is the one split and is called so.
    """
    names = splits(export)
    found = {split: _patterns(_files(export, part)) for part, split in names.items()}
    data_files = [
        {"split": split, "path": [target.folder + pattern for pattern in patterns]}
        for split, patterns in found.items()
        if patterns
    ]
    if not data_files and INDEX_NAME in export.manifest.files:
        data_files = [{"split": INDEX_SPLIT, "path": [target.folder + INDEX_NAME]}]
    return {"config_name": target.config, "data_files": data_files}


def is_loaded(export: Export) -> bool:
    """Return whether `load_dataset` reads the parts of an export."""
    return any(_files(export, part) for part in export.parts)


def splits(export: Export) -> dict[str, str]:
    """Return what `datasets` calls each part: a split has no dash in its name."""
    names: dict[str, str] = {}
    for part in export.parts:
        split = part.replace("-", "_")
        while split in names.values() or (split != part and split in export.parts):
            split += "_"
        names[part] = split
    return names


def _files(export: Export, part: str) -> list[str]:
    regex = re.compile(f"{re.escape(export.file_name(part))}({_LOADED})")
    return [name for name in export.manifest.files if regex.fullmatch(name)]


def _patterns(names: Iterable[str]) -> list[str]:
    """Return patterns of numbered files: `a-[0-9][0-9]-of-12.parquet` matches no file of a part
    called `a-b`, as `a-*` does."""
    number = re.compile(r"\d+(?=-of-\d+\.[^/]+$|\.tar$)")
    return sorted({number.sub(lambda digits: "[0-9]" * len(digits[0]), name) for name in names})

"""A small dataset for the tests of what looks at a store: three raw files, a byte a token."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tokflow.build.dataset import Dataset, load_dataset

TEXTS = {
    "a.jsonl": ["one", "two and a half", "drei €", ""],
    "b.jsonl": ["four", "fünf", "six\nlines", "7"],
    "sub/c.jsonl": ["eight", "nine 😀 ten"],
}
"""23 + 18 + 15 characters, 25 + 19 + 18 bytes and with an EOS each 29 + 23 + 20 tokens."""


def write_raw(folder: Path, texts: Mapping[str, Sequence[str]]) -> None:
    """Write raw files, old enough that their checksums are kept."""
    for key, documents in texts.items():
        path = folder / "raw" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in documents]
        path.write_text("".join(lines), encoding="utf-8")
        os.utime(path, (1_700_000_000, 1_700_000_000))


def declare(folder: Path, **fields: Any) -> Path:
    """Write `dataset.yaml` with `fields` over the defaults; return its path."""
    attributes = {
        "name": "small",
        "raw": {"files": "raw/**/*.jsonl"},
        "tokenizer": {"kind": "bytes"},
        "packing": {"sequence_length": 8},
        "exports": ["bin", "parquet", "pickle"],
        "store": "store",
        **fields,
    }
    path = folder / "dataset.yaml"
    path.write_text(yaml.safe_dump(attributes, sort_keys=False))
    return path


def copy_of(built: Path, folder: Path) -> Path:
    """Copy a folder with a built dataset, which costs less than building it; return the copy."""
    return Path(shutil.copytree(built, folder / "copy", symlinks=True))


def dataset(folder: Path, **fields: Any) -> Dataset:
    """Return the dataset that `declare` declares, with raw files from TEXTS if there are none."""
    if not (folder / "raw").exists():
        write_raw(folder, TEXTS)
    return load_dataset(declare(folder, **fields))

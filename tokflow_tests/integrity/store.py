"""A store with an output of every kind, and what can happen to its files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokflow.exports import FORMATS
from tokflow.pipeline.dataset import Dataset
from tokflow.store.manifest import RUN_NAME
from tokflow.store.store import Store, StoredOutput
from tokflow.store.stored_outputs import walk
from tokflow_tests.tiny import TEXTS, build, declare_small, write_raw

FIELDS: dict[str, Any] = {
    "tokenizer": {"kind": "trained", "vocab_size": 300, "files": "a.jsonl"},
    "documents": {"on_bad_document": "reject"},
    "split": {
        "boundary": "character",
        "parts": {"train": {"characters": 12}, "validation": {"start": 12}},
    },
    "exports": sorted(FORMATS),
}
"""A dataset with rejects and cut documents, so that every kind of file is there."""


def build_all(folder: Path, url: str, **fields: Any) -> None:
    """Build the dataset in `folder`, one of its raw files fetched from `url`."""
    write_raw(folder, TEXTS)
    with (folder / "raw/b.jsonl").open("a") as file:
        file.write('{"text": 5}\n')
    build(declared(folder, url, **fields))


def declared(folder: Path, url: str, **fields: Any) -> Dataset:
    """Return the dataset of a folder, or of a copy of it."""
    files = ["raw/**/*.jsonl", f"{url}/far.jsonl"]
    return declare_small(folder, raw={"files": files}, **{**FIELDS, **fields})


def write_remote(folder: Path) -> None:
    lines = [json.dumps({"text": text}) + "\n" for text in ("from far away", "and further")]
    (folder / "far.jsonl").write_text("".join(lines))


def outputs(store: Path) -> dict[str, list[Path]]:
    """Return the folders of a store's outputs by their kind: stage, or format of an export."""
    found: dict[str, list[Path]] = {}
    for each in walk(Store(store), store):
        assert isinstance(each, StoredOutput), each
        kind = each.manifest.details.get("format", each.manifest.recipe.stage)
        found.setdefault(kind, []).append(each.folder)
    return found


def files_of(output: Path) -> list[str]:
    """Return the files of an output that decide something.

    All but run.json: it tells of times and speeds, no two runs write the same, and nothing is
    made from it, so no checksum covers it.
    """
    paths = (path.relative_to(output) for path in sorted(output.rglob("*")) if path.is_file())
    return [path.as_posix() for path in paths if path.as_posix() != RUN_NAME]


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    if not data:
        path.write_bytes(b"\0")
        return
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] if data else b"\0")


FAULTS: dict[str, Callable[[Path], None]] = {
    "a flipped bit": flip_a_bit,
    "a missing file": Path.unlink,
    "a truncated file": cut_short,
}

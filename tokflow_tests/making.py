"""Tiny datasets whose tokens can be read: a token is a byte of UTF-8, 256 ends a document."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from tokflow.build.dataset import Dataset, make_dataset
from tokflow.build.graph import BuildGraph
from tokflow.build.pipeline import build_dataset
from tokflow.build.results import BuildResult
from tokflow.exports import Part
from tokflow.store.manifest import MANIFEST_NAME, RUN_NAME, Manifest, Recipe, sealed

EOS = 256


def make_recipe(**fields: Any) -> Recipe:
    defaults = {
        "stage": "tokens",
        "version": 1,
        "config": {"eos": "last"},
        "parents": {"raw": "0" * 64},
    }
    return Recipe(**{**defaults, **fields})


def make_manifest(**fields: Any) -> Manifest:
    """Return the manifest of an output without files, such as no stage has."""
    defaults = {
        "recipe": make_recipe(),
        "dataset": "tiny",
        "partition": "a.jsonl",
        "counts": {"num_tokens": 3},
    }
    return Manifest(**{**defaults, **fields})


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """Change the fields of a manifest and seal it again, as who deceives would; return the
    fingerprint that it has now."""
    fields = json.loads((folder / MANIFEST_NAME).read_bytes())
    del fields["digest"]
    change(fields)
    recipe = Recipe(**{name: fields[name] for name in ("stage", "version", "config", "parents")})
    fields["fingerprint"] = recipe.fingerprint
    (folder / MANIFEST_NAME).write_bytes(sealed(fields))
    return recipe.fingerprint


def write_jsonl(path: Path, texts: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def declare(folder: Path, files: Mapping[str, Sequence[str]], **attributes: Any) -> Dataset:
    """Write raw files of one text per line and return the dataset of them, rows of 4 tokens."""
    for name, texts in files.items():
        write_jsonl(folder / "raw" / name, texts)
    defaults = {
        "name": "tiny",
        "raw": {"files": "raw/*.jsonl"},
        "tokenizer": {"kind": "bytes"},
        "packing": {"sequence_length": 4},
        "store": "store",
    }
    return make_dataset({**defaults, **attributes}, base=folder, where="test")


def build(dataset: Dataset) -> BuildResult:
    built = build_dataset(dataset)
    assert not built.failed, [str(failed.error) for failed in built.failed]
    return built


def parts(dataset: Dataset, name: str = "parquet") -> dict[str, Part]:
    """Return what an export of a built dataset is made from."""
    config = next(export for export in dataset.exports if export.name == name)
    return {part.name: part for part in BuildGraph(dataset).parts(config)}


def ids(*documents: str, eos: bool = True) -> list[int]:
    return [token for text in documents for token in [*text.encode(), *([EOS] if eos else [])]]


def tokens_of(part: Part) -> list[int]:
    return [token for run in part.stream() for token in run.tolist()]


def rows_of(part: Part, rows: int = 3) -> list[list[int]]:
    return [row for made in part.sequences(rows) for row in made.token_ids.tolist()]


def index_of(folder: Path, part: str) -> list[dict[str, Any]]:
    return pq.read_table(folder / "index.parquet", filters=[("part", "=", part)]).to_pylist()


def content(folder: Path) -> dict[str, bytes]:
    """Return every file below `folder` by its path, but what tells of a run: times and hashes."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != RUN_NAME and path.name != "hashes.jsonl"
    }


def touched(folder: Path) -> dict[str, int]:
    """Return when each file, folder and link below `folder` was last changed."""
    return {
        path.relative_to(folder).as_posix(): path.lstat().st_mtime_ns for path in folder.rglob("*")
    }


def int64(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@cache
def many_ids() -> str:
    """Return a tokenizer.json in which the word w123 is the token 123, and <eos> is 70,000."""
    model = WordLevel({f"w{token}": token for token in range(70_000)}, unk_token="w0")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer.to_str()

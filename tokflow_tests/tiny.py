"""Tiny datasets: raw files, the dataset over them, and its outputs.

The tokens of `bytes` can be read: a token is a byte of UTF-8, 256 ends a document.
"""

import itertools
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import load_datasets, make_dataset
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.results import BuildResult
from tokflow.pipeline.run import build_dataset, make_output
from tokflow.tokenizers import special_token_fields
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokens.shard import TokenShard

EOS = 256

FEW_TEXTS = ("Hello, world!", "", " don't\r\n", "größe 漢字 👍🏽", "a\x00b", "12 <|endoftext|>")

TEXTS = {
    "a.jsonl": ["one", "two and a half", "drei €", ""],
    "b.jsonl": ["four", "fünf", "six\nlines", "7"],
    "sub/c.jsonl": ["eight", "nine 😀 ten"],
}
"""23 + 18 + 15 characters, 25 + 19 + 18 bytes and with an EOS each 29 + 23 + 20 tokens."""

TINY = {
    "name": "tiny",
    "raw": {"files": "raw/*.jsonl"},
    "tokenizer": {"kind": "bytes"},
    "packing": {"sequence_length": 4},
    "store": "store",
}

SMALL = {
    **TINY,
    "name": "small",
    "raw": {"files": "raw/**/*.jsonl"},
    "packing": {"sequence_length": 8},
    "exports": ["bin", "parquet", "pickle"],
}


def load_dataset(path: Path, **how: Any) -> Dataset:
    """Return the one dataset that a YAML file declares."""
    [dataset] = load_datasets(path, **how)
    return dataset


def declare(
    folder: Path, files: Mapping[str, Iterable[str]] | None = None, **attributes: Any
) -> Dataset:
    """Return the dataset over `<folder>/raw`, rows of 4 tokens; `files` are written there."""
    write_raw(folder, files or {})
    return make_dataset({**TINY, **attributes}, base=folder, where="test")


def declare_texts(
    folder: Path,
    texts: Iterable[str] | None = FEW_TEXTS,
    *,
    suffix: str = ".jsonl",
    documents: Mapping[str, Any] | None = None,
    **tokenizer: Any,
) -> Dataset:
    """Return the dataset of one raw file (None: of those there are) with a tokenizer's config."""
    files = {} if texts is None else {f"texts{suffix}": texts}
    tokenizer = {"kind": "bytes", **tokenizer}
    raw = {"files": "raw/*"}
    return declare(folder, files, raw=raw, documents=documents or {}, tokenizer=tokenizer)


def declare_small(folder: Path, **attributes: Any) -> Dataset:
    """Return the dataset that `write_yaml` declares, over TEXTS if there are no raw files."""
    if not (folder / "raw").exists():
        write_raw(folder, TEXTS)
    return load_dataset(write_yaml(folder, **attributes))


def write_yaml(folder: Path, **attributes: Any) -> Path:
    """Write `dataset.yaml` with these attributes over those of SMALL; return its path."""
    path = folder / "dataset.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **attributes}, sort_keys=False))
    return path


def write_raw(folder: Path, files: Mapping[str, Iterable[str]]) -> None:
    """Write raw files below `<folder>/raw`, one document per text."""
    for key, texts in files.items():
        write_texts(folder / "raw" / key, texts)


def write_texts(path: Path, texts: Iterable[str]) -> Path:
    """Write a parquet file of these texts, or JSON lines; return its path.

    The file is old enough that its checksum is kept, and younger than all written before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": pa.array(texts, pa.large_string())}), path)
    else:
        lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        path.write_bytes("".join(lines).encode())
    second = next(_SECONDS)
    os.utime(path, (second, second))
    return path


_SECONDS = itertools.count(1_700_000_000)


@cache
def many_ids(num: int = 70_000) -> str:
    """Return a tokenizer.json in which the word w123 is the token 123, and <eos> is `num`."""
    vocab = {f"w{token}": token for token in range(num)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [special_token_fields("<eos>", num)],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"},
    }
    return json.dumps(tokenizer)


def ids(*documents: str, eos: bool = True) -> list[int]:
    """Return the tokens of documents, end to end."""
    return [token for text in documents for token in [*text.encode(), *([EOS] if eos else [])]]


def build(dataset: Dataset) -> BuildResult:
    """Build all of a dataset; nothing may fail."""
    built = build_dataset(dataset)
    assert not built.failed, [str(failed.error) for failed in built.failed]
    return built


def save_tokenizer(dataset: Dataset) -> Tokenizer:
    """Return the dataset's tokenizer, saved into its store."""
    graph = graph_of(dataset)
    make_output(graph, "tokenizer", "tokenizer")
    return graph.tokenizer


def tokenize(dataset: Dataset, key: str | None = None) -> TokenShard:
    """Return the token shard of one raw file, by default the first, made through the pipeline."""
    graph = graph_of(dataset)
    make_output(graph, "tokenizer", "tokenizer")
    made = make_output(graph, "tokens", key or next(iter(graph.sources)))
    return TokenShard(made.stored)


def copy_of(built: Path, folder: Path) -> Path:
    """Copy a folder with a built dataset, which costs less than building it; return the copy."""
    return Path(shutil.copytree(built, folder / "copy", symlinks=True))

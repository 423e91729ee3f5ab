"""Five fixed datasets that, together, write every kind of file: text, chats, groups, a mixture and
a limit, each with all formats that take it."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokflow.exports import FORMATS
from tokflow_tests.chats import PLAIN, chat, save_chat_tokenizer

Yaml = dict[str, Any]

ROWS = (
    {"name": "npy_rows", "format": "npy", "layout": "sequences"},
    {"name": "lance_rows", "format": "lance", "layout": "sequences"},
    {"name": "jsonl_ragged", "format": "jsonl", "padding": "none"},
)
WORDS = ("one", "two", "three", "größe", "漢字", "👍🏽", "don't", "  ", "\n", "x" * 40)


def write_inputs(folder: Path) -> None:
    """Write the raw files of all datasets, a tokenizer and a template below `folder`."""
    random = Random(27)
    for name in ("text", "groups", "limit"):
        for number, count in enumerate((30, 1, 20, 9)):
            _write_jsonl(folder / name / f"{number}.jsonl", _texts(random, count))
    with (folder / "text/0.jsonl").open("a", encoding="utf8") as file:
        file.write('{"text": 5}\nno JSON\n')
    urls = [f"http://host/{row}" for row in range(25)]
    table = {"text": pa.array(_texts(random, 25), pa.large_string()), "url": urls}
    pq.write_table(pa.table(table), folder / "text/4.parquet", row_group_size=10)
    _write_chats(folder, random)


def _write_chats(folder: Path, random: Random) -> None:
    chats = [chat(*_texts(random, 2 * random.randrange(1, 4)), system="s") for _ in range(25)]
    rows = (json.dumps({"messages": messages}, ensure_ascii=False) + "\n" for messages in chats)
    (folder / "chats").mkdir()
    (folder / "chats/0.jsonl").write_text("".join(rows), encoding="utf8")
    save_chat_tokenizer(folder, PLAIN)


def _texts(random: Random, count: int) -> list[str]:
    return [" ".join(random.choices(WORDS, k=random.randrange(1, 60))) for _ in range(count)]


def _write_jsonl(path: Path, texts: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"text": text, "url": f"http://host/{row}"} for row, text in enumerate(texts)]
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf8")


def declared(store: str) -> Yaml:
    """Return the YAML of the five datasets and of the sources of the mixture."""
    parts = {"train": {"fraction": 0.8}, "validation": {"fraction": 0.2}}
    all_formats = [*sorted(FORMATS), *ROWS]
    datasets = {
        "text": {
            "raw": {"files": "text/*"},
            "documents": {"on_bad_document": "reject", "keep_columns": ["url"]},
            "split": {
                "boundary": "character",
                "parts": {"train": {"characters": 900}, "validation": {"start": 900}},
            },
            "exports": all_formats,
        },
        "chats": {
            "raw": {"files": "chats/*"},
            "documents": {"messages": "messages"},
            "tokenizer": {"kind": "file", "name": "tok"},
            "split": {"parts": parts},
            "packing": {"strategy": "best_fit", "sequence_length": 256},
            "exports": [export for export in all_formats if export != "llmc"],  # it has EOS first
        },
        "groups": {
            "raw": {"files": "groups/*", "group": 3},
            "shuffle": {"documents": "dataset", "sequences": True, "seed": 1},
            "split": {"parts": parts, "scope": "dataset"},
            "exports": ["bin", "parquet", "npy", "mds"],
        },
        "limit": {
            "raw": {"files": "limit/*"},
            "documents": {"limit": {"documents": 40, "scope": "dataset"}},
            "exports": ["bin", "parquet"],
        },
        "mixed": {
            "mixture": {
                "sources": {"groups": {"weight": 0.7, "max_epochs": 2}, "limit": {"weight": 0.3}},
                "tokens": 4_000,
            },
            "shuffle": {"documents": "file", "seed": 3},
            "exports": all_formats,
        },
    }
    defaults = {
        "tokenizer": {"kind": "bytes"},
        "packing": {"sequence_length": 64},
        "store": store,
    }
    attributes = {"defaults": defaults, "datasets": datasets}
    return {"type": "tokflow.components.TextDataset", "attributes": attributes}

"""What is interrupted: commands that together go through every stage, export, download and process.

Each scenario writes its raw files and declarations into an empty folder, and names the command
that is interrupted there and run again.
"""

import gzip
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokflow.exports import FORMATS
from tokflow.store.remembered import LEAST_OUTPUTS
from tokflow_tests.cli.test_recorded import project_with
from tokflow_tests.raw.servers import running
from tokflow_tests.special import write_letters
from tokflow_tests.tiny import build, load_dataset, write_raw, write_yaml

WORDS = ("a", "the", "größe", "def", "return", "\n", "    ", "日本", "😀", "0x1f", "don't", "...")

COMMON = ["bin", "parquet", "pickle", "jsonl", "megatron", "mds", "lance"]
"""Formats with one file, with many, with folders, of texts, and of a library that writes itself."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One command in a folder that `prepare` filled."""

    prepare: Callable[[Path, str], None]
    """Gets the folder and the address of a web server for it."""
    command: tuple[str, ...]
    project: str = "."
    """Where in the folder the command runs."""
    store: str = "store"


def _texts(seed: int, num: int) -> list[str]:
    choose = random.Random(seed)
    return [" ".join(choose.choices(WORDS, k=choose.randrange(60))) for _ in range(num)]


def _lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def _write_raw(folder: Path, num: int) -> None:
    raw = folder / "raw"
    raw.mkdir()
    (raw / "a.jsonl").write_bytes(_lines(_texts(1, num)))
    (raw / "b.jsonl.gz").write_bytes(gzip.compress(_lines(_texts(2, num)), mtime=0))
    pq.write_table(pa.table({"text": _texts(3, num)}), raw / "c.parquet")


def _build(folder: Path, url: str) -> None:
    """Declare every stage: of some texts there are near copies, one is an evaluation text."""
    _write_raw(folder, 2_000)
    texts = _texts(1, 2_000)
    with (folder / "raw/a.jsonl").open("ab") as file:
        file.write(_lines([f"{text} again" for text in texts[:100]]))
    (folder / "evaluation.jsonl").write_bytes(_lines([max(texts, key=len)]))
    (folder / "removed.csv").write_text("file,row\na.jsonl,7\nc.parquet,11\n")
    write_yaml(
        folder,
        raw={"files": ["raw/a.jsonl", "raw/b.jsonl.gz", "raw/c.parquet"]},
        tokenizer={"kind": "trained", "vocab_size": 400},
        near_duplicates={"threshold": 0.7},
        attributes={"leaks": {"evaluation": "evaluation.jsonl", "text": "text"}},
        exclude="removed.csv",
        select="num_chars >= 5 and contamination < 0.5 and not near_duplicate",
        strata={"long": "num_chars > quantile(0.5)", "rest": True},
        split={"parts": {"train": {"fraction": 0.9}, "validation": {"fraction": 0.1}}},
        packing={"strategy": "best_fit", "sequence_length": 64},
        exports=COMMON,
    )


def _kept(folder: Path, url: str) -> None:
    """Declare an export, after which the tokens go, with everything before it built."""
    _write_raw(folder, 300)
    fields: dict[str, Any] = {
        "raw": {"files": ["raw/a.jsonl", "raw/b.jsonl.gz", "raw/c.parquet"]},
        "packing": {"sequence_length": 64},
    }
    build(load_dataset(write_yaml(folder, **fields, exports=[])))
    write_yaml(folder, **fields, exports=["bin"], keep="exports")


def _exports(folder: Path, url: str) -> None:
    """Declare every format, with the stages before them built."""
    _write_raw(folder, 300)
    fields: dict[str, Any] = {
        "raw": {"files": ["raw/a.jsonl", "raw/b.jsonl.gz", "raw/c.parquet"]},
        "split": {"parts": {"train": {"fraction": 0.9}, "validation": {"fraction": 0.1}}},
        "packing": {"sequence_length": 64},
    }
    build(load_dataset(write_yaml(folder, **fields, exports=[])))
    write_yaml(folder, **fields, exports=list(FORMATS))


def _added(folder: Path, url: str) -> None:
    """Add a raw file to exports, of which it leaves most files as they were."""
    _write_raw(folder, 300)
    shards = [{"format": name, "shard_size": 50_000} for name in ("parquet", "mds", "lance")]
    exports = ["bin", "megatron", *shards]
    packing = {"sequence_length": 64}
    build(load_dataset(write_yaml(folder, packing=packing, exports=exports)))
    (folder / "raw/d.jsonl").write_bytes(_lines(_texts(4, 20)))


def _download(folder: Path, url: str) -> None:
    files = [f"{url}/{name}" for name in ("a.jsonl", "b.jsonl")]
    write_yaml(folder, raw={"files": files}, exports=["bin"])


def _workers(folder: Path, url: str) -> None:
    _write_raw(folder, 1_500)
    write_letters(folder / "letters")
    tokenizer = {"kind": "huggingface", "name": "letters", "trust_remote_code": True}
    write_yaml(folder, raw={"files": "raw/a.jsonl"}, tokenizer=tokenizer, exports=["bin"])


def _recorded(folder: Path, url: str) -> None:
    project_with(folder)


def _many(folder: Path, url: str) -> None:
    """Add to and change many files that are built, whose manifests are in an index."""
    texts = {f"{number:03}.jsonl": _texts(number, 3) for number in range(LEAST_OUTPUTS + 1)}
    fields: dict[str, Any] = {"raw": {"files": "raw/*.jsonl"}, "exports": ["bin"]}
    write_raw(folder, texts)
    build(load_dataset(write_yaml(folder, **fields)))
    write_raw(folder, {"007.jsonl": _texts(700, 3), "new.jsonl": _texts(701, 3)})


RUN = ("run", "--config", "dataset.yaml")
SCENARIOS = {
    "build": Scenario(_build, RUN),
    "exports": Scenario(_exports, RUN),
    "added": Scenario(_added, RUN),
    "kept": Scenario(_kept, RUN),
    "download": Scenario(_download, RUN),
    "workers": Scenario(_workers, RUN),
    "many": Scenario(_many, RUN),
    "recorded": Scenario(_recorded, ("run", "small"), project="project", store="project/store"),
}


@cache
def _file(path: str) -> bytes:
    return _lines(_texts("ab".index(path[1]), 6_000))


@contextmanager
def serve() -> Iterator[str]:
    """Yield the address of a server that sends two files slowly, in ranges where asked to."""
    with running(_SlowHandler) as server:
        yield f"http://127.0.0.1:{server.server_port}"


class _SlowHandler(BaseHTTPRequestHandler):
    """Sends 1 MB in a quarter of a second."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer(send=False)

    def do_GET(self) -> None:
        self._answer(send=True)

    def _answer(self, *, send: bool) -> None:
        content = _file(self.path)
        wanted = self.headers.get("Range", "")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", f'"{len(content)}"')
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if not send:
            return
        try:
            for position in range(start, len(content), 100_000):
                self.wfile.write(content[position : position + 100_000])
                time.sleep(0.025)
        except OSError:  # the client was killed
            self.close_connection = True

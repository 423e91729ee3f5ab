"""`dolma tokens`, on its own layout of documents.

A process of it takes whole files, so the documents are divided among as many .jsonl.gz files as
processes; that is not timed. It shuffles the documents.
"""

import fileinput
import gzip
import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.peers.command import EOS_ID, run


def prepare(request):
    """Write every n-th document into the same file, as {"id", "text"}."""
    folder = request.folder / "documents"
    folder.mkdir()
    files = [
        gzip.open(folder / f"{part}.jsonl.gz", "wt", compresslevel=1, encoding="utf-8")  # noqa: SIM115
        for part in range(request.processes)
    ]
    with fileinput.input(request.files, encoding="utf-8") as lines:
        for ordinal, (line, file) in enumerate(zip(lines, itertools.cycle(files), strict=False)):
            document = {"id": str(ordinal), "text": json.loads(line)["text"]}
            file.write(json.dumps(document, ensure_ascii=False) + "\n")
    for file in files:
        file.close()


def build(request):
    options = {
        "documents": request.folder / "documents/*.jsonl.gz",
        "destination": request.folder / "tokens",
        "tokenizer.name_or_path": request.tokenizer / "tokenizer.json",
        "tokenizer.eos_token_id": EOS_ID,
        "tokenizer.pad_token_id": EOS_ID,
        "dtype": "uint16",
        "processes": request.processes,
    }
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    command = [Path(sys.executable).parent / "dolma", "tokens", *arguments]
    subprocess.run([*command, "--tokenizer.encode_special_tokens"], check=True)


def read(folder):
    for path in sorted((folder / "tokens").glob("*.npy")):
        yield np.fromfile(path, np.uint16)


if __name__ == "__main__":
    run(build=build, read=read, prepare=prepare)

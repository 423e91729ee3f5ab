"""The three commands that each peer's program has.

    python -m benchmarks.peers.NAME prepare FILE FOLDER TOKENIZER PROCESSES    its own input layout
    python -m benchmarks.peers.NAME build FILE FOLDER TOKENIZER PROCESSES
    python -m benchmarks.peers.NAME read FOLDER TOKENS    what it made, as uint16 token ids

Only `build` is timed. FOLDER is empty before, and all that a peer writes goes there.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

EOS = "<|endoftext|>"
EOS_ID = 50256


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a peer is asked to do."""

    file: Path
    """The documents, as `text`, in .jsonl or .parquet; a pattern where there are several files."""
    folder: Path
    tokenizer: Path
    """A folder with GPT-2's tokenizer.json and its companions."""
    processes: int

    @property
    def files(self) -> list[Path]:
        return sorted(self.file.parent.glob(self.file.name))


def run(*, build, read, prepare=None):
    """Do what the command line asks, with a peer's functions.

    `prepare` and `build` take a request; `read` takes the folder and yields arrays of token ids.
    """
    name, *arguments = sys.argv[1:]
    if name == "read":
        folder, tokens = map(Path, arguments)
        write_tokens(read(folder), tokens)
    else:
        file, folder, tokenizer = map(Path, arguments[:3])
        num = int(arguments[3])
        request = Request(file=file, folder=folder, tokenizer=tokenizer, processes=num)
        {"prepare": prepare, "build": build}[name](request)


def write_tokens(arrays, path):
    with path.open("wb") as file:
        for token_ids in arrays:
            np.asarray(token_ids).astype("<u2").tofile(file)

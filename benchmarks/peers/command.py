"""The three commands that each peer's program has.

    python -m benchmarks.peers.NAME prepare FILE FOLDER    its own input layout, if it needs one
    python -m benchmarks.peers.NAME build FILE FOLDER --tokenizer FOLDER --processes 2
    python -m benchmarks.peers.NAME read FOLDER TOKENS     what it made, as uint16 token ids

Only `build` is timed. FOLDER is empty before, and all that a peer writes goes there.
"""

import argparse
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
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prepare", "build"):
        command = commands.add_parser(name)
        command.add_argument("file", type=Path)
        command.add_argument("folder", type=Path)
        command.add_argument("--tokenizer", type=Path)
        command.add_argument("--processes", type=int, default=2)
    command = commands.add_parser("read")
    command.add_argument("folder", type=Path)
    command.add_argument("tokens", type=Path)
    arguments = vars(parser.parse_args())
    name = arguments.pop("command")
    if name == "read":
        write_tokens(read(arguments["folder"]), arguments["tokens"])
    else:
        {"prepare": prepare, "build": build}[name](Request(**arguments))


def write_tokens(arrays, path):
    with path.open("wb") as file:
        for token_ids in arrays:
            np.asarray(token_ids).astype("<u2").tofile(file)

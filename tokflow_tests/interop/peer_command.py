"""What the scripts of `peers/` have in common; imports numpy and the standard library alone.

    python <peer>.py read FOLDER OUT PART,PART... [JSON options]  # into OUT/PART.npz
    python <peer>.py write DOCUMENTS.npz FOLDER [JSON options]

A script says `from peer_command import run` and ends with `run(read=read, write=write)`:

    read(folder: Path, part: str, **options) -> dict of arrays, what the peer's own reader gave
    write(documents: dict of arrays, folder: Path, **options), with the peer's own writer;
        documents holds token_ids (num_tokens,) and offsets (num_documents + 1,), both int64, and
        whatever else the test gave
"""

import json
import sys
from pathlib import Path

import numpy as np


def run(*, read=None, write=None):
    """Do what the command line asks."""
    command, *arguments = sys.argv[1:]
    if command == "read":
        folder, out, parts, *rest = arguments
        for part in parts.split(","):
            np.savez(Path(out) / f"{part}.npz", **read(Path(folder), part, **_options(rest)))
    elif command == "write":
        documents, folder, *rest = arguments
        with np.load(documents) as arrays:
            write(dict(arrays), Path(folder), **_options(rest))
    else:
        sys.exit(f"expected read or write, found {command!r}")


def each(documents, name="token_ids"):
    """Return the tokens, or another array of theirs, of each document."""
    return np.split(documents[name], documents["offsets"][1:-1])


def _options(rest):
    return json.loads(rest[0]) if rest else {}

"""Verdicts on gigatoken: kept in the store, for one tokenizer and all its files.

    <store>/.verdicts/<fingerprint of the tokenizer[:16]>.json

A verdict stays until somebody removes it by hand, whatever version of gigatoken comes next: the
shards it was wrong on may still lie in the store.
"""

import json
from importlib.metadata import version
from pathlib import Path

from tokflow.storage import new_file

VERDICTS_NAME = ".verdicts"


def read_verdict(folder: Path, fingerprint: str) -> str | None:
    """Return what gigatoken did wrong with the tokenizer in `folder`; None where nothing is known.

    A verdict that cannot be read is one all the same.
    """
    path = _path(folder, fingerprint)
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["difference"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, TypeError):
        return f"{path} cannot be read"


def write_verdict(folder: Path, fingerprint: str, difference: str) -> None:
    """Keep what gigatoken did wrong with the tokenizer in `folder`: whole or not at all."""
    fields = {
        "engine": "gigatoken",
        "version": version("gigatoken"),
        "tokenizer_fingerprint": fingerprint,
        "difference": difference,
    }
    with new_file(_path(folder, fingerprint)) as path:
        path.write_text(json.dumps(fields, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _path(folder: Path, fingerprint: str) -> Path:
    """Return the path of a verdict on the tokenizer in `<store>/<dataset>/tokenizer/<name>`."""
    store = folder.absolute().joinpath("../../..").resolve()
    return store / VERDICTS_NAME / f"{fingerprint[:16]}.json"

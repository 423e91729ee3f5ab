"""Verdicts on gigatoken: kept for one tokenizer and all its files, in two places.

    <store>/.verdicts/<fingerprint of the tokenizer[:16]>.json
    <store>/<dataset>/.verdicts/<the same name>

Either counts: the first for all datasets of the store, the second goes where the folder of a
dataset is copied. A verdict stays until somebody removes it by hand, whatever version of gigatoken
comes next: the shards it was wrong on may still lie in the store.
"""

import json
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from tokflow.store.manifest import VERDICTS_NAME
from tokflow.store.store import InStore


def read_verdict(folder: Path, fingerprint: str) -> str | None:
    """Return what gigatoken did wrong with the tokenizer in `folder`; None where nothing is known.

    A verdict that cannot be read is one all the same.
    """
    for path in _paths(folder, fingerprint):
        try:
            return str(json.loads(path.read_text(encoding="utf-8"))["difference"])
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, LookupError, TypeError):
            return f"{path} cannot be read"
    return None


def write_verdict(tokenizer: InStore, difference: str) -> None:
    """Keep what gigatoken did wrong with a tokenizer: whole or not at all."""
    fingerprint = tokenizer.manifest.details["tokenizer_fingerprint"]
    fields = {
        "engine": "gigatoken",
        "version": version("gigatoken"),
        "tokenizer_fingerprint": fingerprint,
        "difference": difference,
    }
    content = json.dumps(fields, indent=1, ensure_ascii=False) + "\n"
    for path in _paths(tokenizer.folder, fingerprint):
        tokenizer.store.write_beside(path, content.encode())


def try_to_write_verdict(tokenizer: InStore, difference: str) -> None:
    """Keep a verdict unless the store cannot be written to: then nothing in it can be fixed."""
    with suppress(OSError):
        write_verdict(tokenizer, difference)


def spread_verdict(tokenizer: InStore) -> None:
    """Put a verdict that is known in one of its places into the other, byte for byte."""
    paths = _paths(tokenizer.folder, tokenizer.manifest.details["tokenizer_fingerprint"])
    known = [path for path in paths if path.is_file()]
    for path in paths if known else ():
        if path not in known:
            tokenizer.store.write_beside(path, known[0].read_bytes())


def _paths(folder: Path, fingerprint: str) -> list[Path]:
    """Return the paths of a verdict on the tokenizer in `<store>/<dataset>/tokenizer/<name>`."""
    dataset = folder.absolute().parents[1]
    name = f"{fingerprint[:16]}.json"
    return [place / VERDICTS_NAME / name for place in (dataset.parent, dataset)]

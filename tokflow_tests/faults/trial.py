"""One build into a bucket, and whether what it left there is right."""

import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tokflow.documents import ranges
from tokflow.errors import TokflowError
from tokflow.exports import stage, token_files
from tokflow.pipeline import output_tasks
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.run import build_dataset
from tokflow.store import requests
from tokflow.store.remote import s3
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.tiny import declare

MIB = 1 << 20

Objects = Mapping[str, bytes]


@dataclass
class Given:
    """What is built: once undisturbed, then again and again while something fails."""

    name: str
    folder: Path
    fields: dict[str, Any]
    texts: dict[str, list[str]]
    objects: Objects = field(default_factory=dict)
    """Of the undisturbed build."""
    requests: Counter[str] = field(default_factory=Counter)
    """Of the undisturbed build, and of a second machine that adds an export."""

    def declared(self, store: ObjectStore, *exports: Any) -> Dataset:
        """Return the dataset with its store in a bucket, over raw files written once."""
        texts = {} if (self.folder / "raw").exists() else self.texts
        named = [*self.fields["exports"], *exports]
        fields = {**self.fields, "exports": named}
        return declare(self.folder, texts, store=f"{store.url}/store", **fields)


MORE = "jsonl"
"""The export that the second machine adds, for which it reads what the first has made."""


def givens(folder: Path) -> Iterator[Given]:
    """Yield a dataset of small files and segments, and one whose files go in several parts."""
    texts = [f"text {number} {'ä' * (number % 7)}" for number in range(40)]
    parquet = {"format": "parquet", "name": "rows"}
    fields = {"exports": ["bin", parquet], "tokenizer": {"kind": "trained", "vocab_size": 300}}
    yield Given("small", folder / "small", fields, {"a.jsonl": texts, "b.jsonl": ["b", "c"]})
    large = [letter * MIB for letter in "abcdefgh"]
    yield Given("large", folder / "large", {"exports": ["bin"]}, {"a.jsonl": large})


@contextmanager
def short() -> Iterator[None]:
    """Let waits be short, files be made in segments, and some MB be put in parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "FIRST_WAIT_SECONDS", 0.001)
        patch.setattr(requests, "LONGEST_WAIT_SECONDS", 0.01)
        patch.setattr(ranges, "RANGE_BYTES", 4 * MIB)
        patch.setattr(stage, "SEGMENT_TOKENS", 4 * MIB)
        patch.setattr(output_tasks, "KEPT_HERE_BYTES", 0)
        for module in (s3, token_files):
            patch.setattr(module, "SHORT_BYTES", 5 * MIB)
        patch.setattr(s3, "PART_BYTES", 10 * MIB)
        yield


def undisturbed(given: Given, server: ObjectStore) -> Given:
    """Build without a fault, then add an export on another machine; return what that leaves."""
    store = server.with_new_bucket()
    with store.counted() as requests:
        for exports in ((), (MORE,)):
            assert build(given, store, *exports) == []
    given.objects, given.requests = right_objects(store), requests
    return given


def build(given: Given, store: ObjectStore, *exports: Any) -> list[str]:
    """Build on a machine with an empty cache; return the errors, each in words.

    Raises: what is not an error in words.
    """
    another_cache(given)
    try:
        built = build_dataset(given.declared(store, *exports))
    except TokflowError as error:
        return [str(error)]
    for failed in built.failed:
        if not isinstance(failed.error, TokflowError | OSError):
            raise failed.error
    return [str(failed.error) for failed in built.failed]


def another_cache(given: Given) -> None:
    """Let this process be a machine that has nothing of the store."""
    caches = given.folder / f"caches-{os.getpid()}"
    shutil.rmtree(caches, ignore_errors=True)
    os.environ["TOKFLOW_CACHE"] = str(caches / uuid.uuid4().hex[:8])


def right_objects(store: ObjectStore) -> Objects:
    """Return the objects but for what tells of runs, and for what a killed writer left."""
    return {key: data for key, data in store.contents().items() if not key.endswith("run.json")}


def problem(given: Given, store: ObjectStore, *, errors: list[str], must_pass: bool) -> str | None:
    """Say what is wrong after a disturbed build of all; None if it held.

    It held if what it published has the right bytes, if it failed only where it may, and if another
    machine then completes it without an error.
    """
    if must_pass and errors:
        return f"failed: {errors[0]}"
    if wrong := _wrong(given, right_objects(store)):
        return f"published other bytes: {wrong[0]}"
    store.recover()
    if errors := build(given, store, MORE):
        return f"failed when nothing was in its way: {errors[0]}"
    found = right_objects(store)
    if wrong := _wrong(given, found):
        return f"left other bytes: {wrong[0]}"
    missing = given.objects.keys() - found.keys()
    return f"left out: {min(missing)}" if missing else None


def _wrong(given: Given, found: Objects) -> list[str]:
    return sorted(
        key for key in found.keys() & given.objects.keys() if found[key] != given.objects[key]
    )


Trial = Callable[[], str | None]
"""Returns what is wrong, or None if it held."""

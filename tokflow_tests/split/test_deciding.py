"""The recipe of a split holds what can change a byte of it, and nothing else."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tokflow.pipeline.mixture import graph_of
from tokflow_tests.outputs import content
from tokflow_tests.tiny import build, declare

TEXTS = {"a.jsonl": ["abcd", "", "efg", "hi"], "b.jsonl": ["klmnop", "q", "", "rstuv", "wx", "yz"]}

CHARACTERS = {"parts": {"train": {"characters": 5}, "test": {"start": 6, "characters": 9}}}
DOCUMENTS = {"parts": {"train": {"documents": 2}, "test": {"start": 3}}}
FRACTION = {"parts": {"train": {"fraction": 0.5}, "test": {"fraction": 0.25}}}
HASH = {"parts": {"train": {"hash_fraction": 0.5}, "test": {"hash_fraction": 0.25}}}
FILES = {"parts": {"train": {"files": "a*"}, "test": {"files": "b*"}}}
ALL = {"parts": {"train": {"start": 0}}}
ALL_DRAWN = {"parts": {"train": {"fraction": 1.0}, "test": {"fraction": 0.0}}}


def parts(of: dict[str, Any], **changed: dict[str, Any]) -> dict[str, Any]:
    return {"parts": {**of["parts"], **changed}}


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "seed beside characters": (CHARACTERS, {"seed": 1}, {}, ""),
    "seed of a draw": (FRACTION, {"seed": 1}, {}, "ab"),
    "seed of hashes": (HASH, {"seed": 1}, {}, "ab"),
    "seed of a draw of all": (ALL_DRAWN, {"seed": 1}, {}, ""),
    "scope of characters": (CHARACTERS, {"scope": "dataset"}, {}, "b"),
    "scope of documents": (DOCUMENTS, {"scope": "dataset"}, {}, "b"),
    "scope of a draw": (FRACTION, {"scope": "dataset"}, {}, "ab"),
    "scope of hashes": (HASH, {"scope": "dataset"}, {}, ""),
    "scope of a part without edges": (ALL, {"scope": "dataset"}, {}, ""),
    "boundary of characters": (CHARACTERS, {"boundary": "character"}, {}, "ab"),
    "boundary of a part without edges": (ALL, {"boundary": "character"}, {}, ""),
    "number of characters": (
        CHARACTERS,
        parts(CHARACTERS, test={"start": 6, "characters": 1}),
        {},
        "ab",
    ),
    "start of no characters": (
        parts(CHARACTERS, none={"start": 1, "characters": 0}),
        parts(CHARACTERS, none={"start": 2, "characters": 0}),
        {},
        "",
    ),
    "start at the beginning": (
        CHARACTERS,
        parts(CHARACTERS, train={"start": 0, "characters": 5}),
        {},
        "",
    ),
    "pattern that takes the same": (FILES, parts(FILES, train={"files": "a.jsonl"}), {}, ""),
    "pattern that takes another": (
        FILES,
        parts(FILES, train={"files": "b*"}, test={"files": "a*"}),
        {},
        "ab",
    ),
    "seed of a shuffle": (CHARACTERS, {}, {"seed": 3, "documents": "file"}, "ab"),
    "seed of a shuffle of all files": (CHARACTERS, {}, {"seed": 1, "documents": "dataset"}, ""),
}
"""A split, a change of it, one of `shuffle`, and the files of which the split becomes another."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Return the fingerprint and the files of each file's split, of attributes given as JSON."""
    folder = tmp_path_factory.mktemp("deciding")

    @cache
    def make(attributes: str) -> dict[str, Any]:
        build(dataset := declare(folder, TEXTS, **json.loads(attributes)))
        found, graph = {}, graph_of(dataset)
        for key in TEXTS:
            stored = graph.split(key)
            manifest, files = stored.manifest(), content(stored.folder)
            data = {name: files[name] for name in manifest.files}
            found[key] = stored.fingerprint, {**data, "parts": manifest.details["parts"]}
        return found

    return make


@pytest.mark.parametrize("change", CHANGES)
def test_a_split_is_made_again_where_a_byte_changes_and_nowhere_else(
    change: str, made: Callable[[str], dict[str, Any]]
):
    before, after, shuffle, changed = CHANGES[change]
    was_shuffled = {"shuffle": {**shuffle, "seed": 0}} if shuffle else {}
    shuffled = {"shuffle": shuffle} if shuffle else {}

    old = made(json.dumps({"split": before, **was_shuffled}))
    new = made(json.dumps({"split": {**before, **after}, **shuffled}))

    for key in TEXTS:
        is_same = key[0] not in changed
        assert (old[key][0] == new[key][0], old[key][1] == new[key][1]) == (is_same, is_same), key

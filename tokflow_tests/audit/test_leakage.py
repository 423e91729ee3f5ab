"""Texts in two parts."""

from pathlib import Path
from typing import Any

import pytest

from tokflow.audit.checks import find_shared_texts
from tokflow.pipeline.mixture import graph_of
from tokflow.split import Split
from tokflow_tests.tiny import build, declare

LICENCE = "this text is long enough to be compared"


def splits(
    folder: Path, files: dict[str, list[str]], split: dict[str, Any] | None = None
) -> list[Split]:
    halves = {"parts": {"train": {"documents": 2}, "validation": {"start": 2, "documents": 9}}}
    dataset = declare(folder, files, split=split or halves)
    build(dataset)
    graph = graph_of(dataset)
    return [graph.open_split(key) for key in graph.sources]


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({"a.jsonl": ["x", LICENCE, "y", LICENCE]}, "a.jsonl:3"),
        ({"a.jsonl": [LICENCE], "b.jsonl": ["x", "y", LICENCE]}, "b.jsonl:2"),
    ],
)
def test_a_text_in_two_parts_is_found_with_its_place(
    files: dict[str, list[str]], place: str, tmp_path: Path
):
    found = find_shared_texts(splits(tmp_path, files))

    assert found == [f"train and validation: expected no text in both, found 1, such as {place}"]


def test_short_texts_are_equal_by_chance(tmp_path: Path):
    short, long = "s" * 31, "l" * 32

    [found] = find_shared_texts(splits(tmp_path, {"a.jsonl": [short, long, short, long]}))
    assert found.endswith("found 1, such as a.jsonl:3")


def test_the_pieces_of_a_cut_document_are_no_leak(tmp_path: Path):
    split = {
        "boundary": "character",
        "parts": {"train": {"characters": 10}, "validation": {"start": 10}},
    }

    assert find_shared_texts(splits(tmp_path, {"a.jsonl": [LICENCE]}, split)) == []

"""The rule of a split: which part takes what, and what of it decides a byte."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tokflow.errors import ConfigError
from tokflow.pipeline.mixture import graph_of
from tokflow.split.rule import (
    NO_PART,
    FilePosition,
    FileSpans,
    PartConfig,
    SplitConfig,
    assign_parts,
)
from tokflow_tests.outputs import content
from tokflow_tests.tiny import build, declare


def documents_of(texts: list[str]) -> pa.Table:
    num_chars = np.array([len(text) for text in texts], dtype=np.int64)
    hashes = [xxhash.xxh3_128_digest(text.encode()) for text in texts]
    return pa.table(
        {
            "char_offset": np.cumsum(num_chars) - num_chars,
            "num_chars": num_chars,
            "text_hash": pa.array(hashes, type=pa.binary(16)),
        }
    )


def texts_of(*num_chars: int) -> list[str]:
    return [chr(ord("a") + ordinal % 26) * num for ordinal, num in enumerate(num_chars)]


def assign(
    texts: list[str], *, key: str = "a.jsonl", position: FilePosition | None = None, **config
) -> FileSpans:
    config["parts"] = {name: PartConfig(**part) for name, part in config["parts"].items()}
    split = SplitConfig(**config).of_file(key, None)
    return assign_parts(documents_of(texts), split, key=key, position=position or FilePosition())


def part_of(texts: list[str], **config) -> list[int]:
    return assign(texts, **config).part.tolist()


def pieces_of(texts: list[str], **config) -> list[tuple[str, int]]:
    """Return the text of each piece and its part, for a split that cuts."""
    pieces = assign(texts, boundary="character", **config)
    columns = (pieces.document, pieces.char_start, pieces.num_chars, pieces.part)
    return [
        (texts[document][start : start + length], part)
        for document, start, length, part in zip(*(c.tolist() for c in columns), strict=True)
    ]


TWO_PARTS = {"train": {"start": 0, "characters": 5}, "validation": {"start": 5, "characters": 4}}


DATASET = {"scope": "dataset"}
OPEN_AT_4 = {"validation": {"start": 0, "characters": 4}, "train": {"start": 4}}
COUNTED = {"test": {"documents": 1}, "train": {"start": 2, "documents": 2}}
EMPTY_TEST = {"test": {"start": 0, "characters": 0}, "train": {"start": 0, "characters": 3}}
BY_FILE = {"validation": {"files": "val-*"}, "train": {"files": "train/*.jsonl"}}
WITH_EMPTY = ["", "aaaaa", "", "bbbb", ""]

CASES = {
    "whole, to the part of its first character": (texts_of(3, 4, 3), TWO_PARTS, {}, [0, 0, 1]),
    "a part without characters runs to the end": (
        texts_of(3, 1, 1, 9),
        OPEN_AT_4,
        {},
        [0, 0, 1, 1],
    ),
    "an empty one goes with what is before it": (WITH_EMPTY, TWO_PARTS, {}, [0, 0, 0, 1, 1]),
    "an empty one is not cut": (
        *(WITH_EMPTY, TWO_PARTS, {"boundary": "character"}, [0, 0, 0, 1, 1]),
    ),
    "offsets run over all files": (
        *(texts_of(1, 3, 3), TWO_PARTS),
        *(DATASET | {"position": FilePosition(first_char=4)}, [0, 1, 1]),
    ),
    "an empty one that begins a file goes with the file before": (
        *(["", "a"], TWO_PARTS, DATASET | {"position": FilePosition(first_char=5)}, [0, 1]),
    ),
    "documents are counted": (texts_of(9, 1, 0, 5, 2), COUNTED, {}, [0, NO_PART, 1, 1, NO_PART]),
    "documents are counted over all files": (
        *(texts_of(1, 1), {"test": {"documents": 4}, "train": {"start": 4}}),
        *(DATASET | {"position": FilePosition(first_document=3)}, [0, 1]),
    ),
    "fraction 1 takes all": (texts_of(*range(20)), {"a": {"fraction": 1.0}}, {"seed": 7}, [0] * 20),
    "an empty part overlaps with none": (texts_of(2, 2), EMPTY_TEST, {}, [1, 1]),
    "a key matches the first": (["a", "b"], BY_FILE, {"key": "val-1.jsonl"}, [0, 0]),
    "a key matches the second": (["a", "b"], BY_FILE, {"key": "train/1.jsonl"}, [1, 1]),
    "a key matches none": (["a", "b"], BY_FILE, {"key": "test.jsonl"}, [NO_PART, NO_PART]),
    "everything is train by default": (["abc", ""], {"train": {"start": 0}}, {}, [0, 0]),
    "no documents, by characters": ([], TWO_PARTS, {}, []),
    "no documents, counted": ([], COUNTED, {}, []),
    "no documents, drawn": ([], {"train": {"fraction": 0.5}}, {}, []),
    "no documents, by hash": ([], {"train": {"hash_fraction": 0.5}}, {}, []),
}


@pytest.mark.parametrize(("texts", "parts", "config", "expected"), CASES.values(), ids=CASES)
def test_each_document_belongs_to_the_part_that_the_rule_says(
    texts: list[str], parts: dict, config: dict, expected: list[int]
):
    assert part_of(texts, parts=parts, **config) == expected


def test_with_boundary_character_documents_are_cut_where_a_part_ends():
    pieces = assign(texts_of(3, 4, 3), parts=TWO_PARTS, boundary="character")

    assert pieces.document.tolist() == [0, 1, 1, 2, 2]
    assert pieces.char_start.tolist() == [0, 0, 2, 0, 2]
    assert pieces.num_chars.tolist() == [3, 2, 2, 2, 1]
    assert pieces.part.tolist() == [0, 0, 1, 1, NO_PART]
    assert pieces.is_cut.tolist() == [False, True, True, True, True]


def test_fractions_are_of_documents_drawn_without_replacement():
    parts = {"train": {"fraction": 0.7}, "validation": {"fraction": 0.2}}

    drawn = part_of(texts_of(*[1] * 10), parts=parts)

    assert sorted(drawn) == [NO_PART] + [0] * 7 + [1] * 2
    assert drawn == [0, 0, 0, 0, 0, 1, 0, 0, NO_PART, 1]


def test_another_seed_or_file_gives_another_draw():
    texts = texts_of(*[1] * 40)
    parts = {"train": {"fraction": 0.5}, "validation": {"fraction": 0.5}}

    draws = {
        tuple(part_of(texts, parts=parts, seed=seed, key=key)) for seed in (0, 1) for key in "ab"
    }

    assert len(draws) == 4
    assert {draw.count(0) for draw in draws} == {20}


def test_with_scope_dataset_the_draw_is_over_all_files():
    parts = {"train": {"fraction": 0.5}, "validation": {"fraction": 0.5}}
    whole = part_of(
        texts_of(*[1] * 10), parts=parts, scope="dataset", position=FilePosition(total_documents=10)
    )

    halves = [
        part_of(
            texts_of(*[1] * 5),
            parts=parts,
            scope="dataset",
            key=key,
            position=FilePosition(first_document=first, total_documents=10),
        )
        for first, key in ((0, "a"), (5, "b"))
    ]

    assert halves[0] + halves[1] == whole
    assert whole.count(0) == 5


HASH_PARTS = {"train": {"hash_fraction": 0.6}, "validation": {"hash_fraction": 0.4}}


def test_a_text_stays_in_its_part_when_files_come_and_go():
    texts = [f"text {number}" for number in range(199)] + ["text 7"]

    before = part_of(texts, parts=HASH_PARTS)
    after = part_of(["new", *texts[50:]], parts=HASH_PARTS, key="other.jsonl")

    assert after[1:] == before[50:]
    assert before[7] == before[-1]
    assert 90 < before.count(0) < 150


def test_hash_fractions_that_add_up_to_one_leave_nothing_out():
    thirds = {name: {"hash_fraction": 1 / 3} for name in ("a", "b", "c")}

    parts = part_of([str(number) for number in range(300)], parts=thirds)

    assert set(parts) == {0, 1, 2}


SOURCE_PARTS = {"train": {"source_split": "train"}, "rest": {"source_split": "test"}}


@pytest.mark.parametrize(("split", "part"), [("train", 0), ("test", 1), (None, NO_PART)])
def test_whole_files_go_where_their_source_has_them(split: str | None, part: int):
    config = SplitConfig(parts=SOURCE_PARTS, scope="dataset").of_file("a", split)

    assert part_of(["a", "", "b"], **config.model_dump()) == [part, part, part]


FRACTION_AND_DOCUMENTS = {"train": {"fraction": 0.5}, "validation": {"documents": 9}}

REFUSED = [
    (
        {"train": {"characters": 1_000_000}, "validation": {"start": 900_000}},
        "split.parts",
        "train takes characters 0 to 1,000,000 and validation starts at 900,000",
    ),
    (
        {"validation": {"start": 9, "documents": 3}, "train": {"start": 2}},
        "split.parts",
        "train takes documents 2 to the end and validation starts at 9",
    ),
    ({"train": {"start": 1, "fraction": 0.5}}, "split.parts", "fraction and start"),
    (FRACTION_AND_DOCUMENTS, "split.parts", "documents and fraction"),
    ({"train": {}, "validation": {"fraction": 0.1}}, "split.parts", "fraction and none"),
    ({"a": {"fraction": 0.9}, "b": {"fraction": 0.2}}, "split.parts", "1.1"),
    (
        {"a": {"source_split": "train"}, "b": {"source_split": "train"}},
        "split.parts",
        "train of the source in a and in b",
    ),
    ({"a": {"files": "*"}, "b": {"files": "a*"}}, "split.parts: a.jsonl", "it matches a and b"),
    ({"a": {"characters": -1}}, "split.parts.characters", "-1"),
    ({"a": {"start": -2}}, "split.parts.start", "-2"),
    ({"a": {"fraction": 1.5}}, "split.parts.fraction", "1.5"),
    ({}, "split.parts", "none"),
    ({"a": {"documents": 9}}, "split.boundary", "character, with parts by documents"),
    ({"../a": {}}, "split.parts", "'../a'"),
    ({"é": {}}, "split.parts", "'é'"),
    ({"train": {"start": 0}, "no_part": {"start": 5}}, "split.parts", "'no_part'"),
]


@pytest.mark.parametrize(("parts", "where", "found"), REFUSED)
def test_parts_that_cannot_be_are_refused(parts: dict, where: str, found: str):
    is_cut = {"boundary": "character"} if where == "split.boundary" else {}
    with pytest.raises(ConfigError) as caught:
        assign(["abc"], parts=parts, **is_cut)

    assert (caught.value.where, caught.value.found) == (where, found)


numbers_of_chars = st.lists(st.integers(0, 6), max_size=12)


@st.composite
def ranges(draw) -> dict[str, dict[str, int]]:
    edges = sorted(draw(st.lists(st.integers(0, 30), min_size=2, max_size=6, unique=True)))
    edges = edges[: len(edges) // 2 * 2]
    return {
        f"part{ordinal}": {"start": start, "characters": stop - start}
        for ordinal, (start, stop) in enumerate(zip(edges[:-1:2], edges[1::2], strict=True))
    }


@given(numbers_of_chars, ranges(), st.integers(0, 9))
def test_every_character_is_in_one_piece_and_in_the_part_of_its_offset(
    num_chars: list[int], parts: dict, first_char: int
):
    texts = texts_of(*num_chars)

    pieces = pieces_of(
        texts, parts=parts, scope="dataset", position=FilePosition(first_char=first_char)
    )

    assert "".join(text for text, _ in pieces) == "".join(texts)
    found = [part for text, part in pieces for _ in text]
    spans = [(part["start"], part["start"] + part["characters"]) for part in parts.values()]
    assert found == [
        next((ordinal for ordinal, (start, stop) in enumerate(spans) if start <= at < stop), -1)
        for at in range(first_char, first_char + sum(num_chars))
    ]


@given(numbers_of_chars, ranges())
def test_the_pieces_of_a_document_are_the_document_and_uncut_ones_are_whole(
    num_chars: list[int], parts: dict
):
    pieces = assign(texts_of(*num_chars), parts=parts, boundary="character")

    assert np.unique(pieces.document).tolist() == list(range(len(num_chars)))
    sums = np.bincount(pieces.document, weights=pieces.num_chars, minlength=len(num_chars))
    assert sums.tolist() == num_chars
    num_pieces = np.bincount(pieces.document, minlength=len(num_chars))[pieces.document]
    assert (pieces.is_cut == (num_pieces > 1)).all()
    assert pieces.num_chars[pieces.is_cut].all()


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

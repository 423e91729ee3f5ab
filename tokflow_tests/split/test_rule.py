import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tokflow.errors import ConfigError
from tokflow.split.rule import (
    NO_PART,
    FilePosition,
    FileSpans,
    PartConfig,
    SplitConfig,
    assign_parts,
)


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


def test_a_document_belongs_whole_to_the_part_of_its_first_character():
    assert part_of(texts_of(3, 4, 3), parts=TWO_PARTS) == [0, 0, 1]


def test_with_boundary_character_documents_are_cut_where_a_part_ends():
    pieces = assign(texts_of(3, 4, 3), parts=TWO_PARTS, boundary="character")

    assert pieces.document.tolist() == [0, 1, 1, 2, 2]
    assert pieces.char_start.tolist() == [0, 0, 2, 0, 2]
    assert pieces.num_chars.tolist() == [3, 2, 2, 2, 1]
    assert pieces.part.tolist() == [0, 0, 1, 1, NO_PART]
    assert pieces.is_cut.tolist() == [False, True, True, True, True]


def test_everything_is_train_by_default():
    pieces = assign_parts(
        documents_of(["abc", ""]), SplitConfig(), key="a", position=FilePosition()
    )

    assert pieces.part.tolist() == [0, 0]


def test_a_part_without_characters_runs_to_the_end():
    parts = {"validation": {"start": 0, "characters": 4}, "train": {"start": 4}}

    assert part_of(texts_of(3, 1, 1, 9), parts=parts) == [0, 0, 1, 1]


def test_characters_in_no_part_are_in_no_part():
    parts = {"train": {"start": 2, "characters": 2}, "test": {"start": 6, "characters": 1}}

    assert pieces_of(["abcdefgh"], parts=parts) == [
        ("ab", NO_PART),
        ("cd", 0),
        ("ef", NO_PART),
        ("g", 1),
        ("h", NO_PART),
    ]


def test_one_document_is_cut_by_three_parts():
    parts = {
        "train": {"start": 0, "characters": 2},
        "validation": {"start": 2, "characters": 3},
        "test": {"start": 5},
    }

    assert pieces_of(["abcdefgh"], parts=parts) == [("ab", 0), ("cde", 1), ("fgh", 2)]


def test_an_edge_between_documents_cuts_nothing():
    pieces = assign(texts_of(5, 4), parts=TWO_PARTS, boundary="character")

    assert pieces.part.tolist() == [0, 1]
    assert not pieces.is_cut.any()


def test_offsets_count_code_points_and_not_bytes_or_utf_16():
    parts = {"train": {"start": 0, "characters": 3}, "validation": {"start": 3}}

    assert pieces_of(["😀é", "漢😀字"], parts=parts) == [("😀é", 0), ("漢", 0), ("😀字", 1)]


@pytest.mark.parametrize("boundary", ["document", "character"])
def test_an_empty_document_goes_with_the_character_before_it(boundary: str):
    texts = ["", "aaaaa", "", "bbbb", ""]

    assert part_of(texts, parts=TWO_PARTS, boundary=boundary) == [0, 0, 0, 1, 1]


def test_offsets_run_over_all_files_with_scope_dataset():
    position = FilePosition(first_char=4)

    parts = part_of(texts_of(1, 3, 3), parts=TWO_PARTS, scope="dataset", position=position)

    assert parts == [0, 1, 1]


def test_a_document_is_cut_at_an_offset_of_the_dataset():
    position = FilePosition(first_char=3)

    pieces = pieces_of(["abcd"], parts=TWO_PARTS, scope="dataset", position=position)

    assert pieces == [("ab", 0), ("cd", 1)]


def test_the_empty_document_that_begins_a_file_goes_with_the_last_character_of_the_file_before():
    position = FilePosition(first_char=5)

    assert part_of(["", "a"], parts=TWO_PARTS, scope="dataset", position=position) == [0, 1]


def test_documents_are_counted_from_start_on():
    parts = {"test": {"documents": 1}, "train": {"start": 2, "documents": 2}}

    assert part_of(texts_of(9, 1, 0, 5, 2), parts=parts) == [0, NO_PART, 1, 1, NO_PART]


def test_documents_are_counted_over_all_files_with_scope_dataset():
    parts = {"test": {"documents": 4}, "train": {"start": 4}}
    position = FilePosition(first_document=3)

    assert part_of(texts_of(1, 1), parts=parts, scope="dataset", position=position) == [0, 1]


@pytest.mark.parametrize("seed", [0, 1, -7])
def test_fraction_one_takes_every_document(seed: int):
    assert part_of(texts_of(*range(20)), parts={"train": {"fraction": 1.0}}, seed=seed) == [0] * 20


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
        texts_of(*[1] * 10),
        parts=parts,
        scope="dataset",
        position=FilePosition(total_documents=10),
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
    texts = [f"text {number}" for number in range(200)]

    before = part_of(texts, parts=HASH_PARTS)
    after = part_of(["new", *texts[50:]], parts=HASH_PARTS, key="other.jsonl")

    assert after[1:] == before[50:]
    assert 90 < before.count(0) < 150


def test_equal_texts_are_in_the_same_part():
    parts = part_of(["same", "other", "same"], parts=HASH_PARTS)

    assert parts[0] == parts[2]


def test_hash_fractions_that_add_up_to_one_leave_nothing_out():
    thirds = {name: {"hash_fraction": 1 / 3} for name in ("a", "b", "c")}

    parts = part_of([str(number) for number in range(300)], parts=thirds)

    assert set(parts) == {0, 1, 2}


def test_whole_files_go_where_their_key_matches():
    parts = {"validation": {"files": "val-*"}, "train": {"files": "train/*.jsonl"}}

    assert part_of(["a", "b"], parts=parts, key="val-1.jsonl") == [0, 0]
    assert part_of(["a", "b"], parts=parts, key="train/1.jsonl") == [1, 1]
    assert part_of(["a", "b"], parts=parts, key="test.jsonl") == [NO_PART, NO_PART]


SOURCE_PARTS = {"train": {"source_split": "train"}, "rest": {"source_split": "test"}}


@pytest.mark.parametrize(("split", "part"), [("train", 0), ("test", 1), (None, NO_PART)])
def test_whole_files_go_where_their_source_has_them(split: str | None, part: int):
    config = SplitConfig(parts=SOURCE_PARTS, scope="dataset").of_file("a", split)

    assert part_of(["a", "", "b"], **config.model_dump()) == [part, part, part]


@pytest.mark.parametrize(
    "parts",
    [
        TWO_PARTS,
        {"train": {"documents": 1}},
        {"train": {"fraction": 0.5}},
        HASH_PARTS,
        {"train": {"files": "*"}},
    ],
    ids=["characters", "documents", "fraction", "hash_fraction", "files"],
)
def test_a_file_without_documents_has_no_pieces(parts: dict):
    assert part_of([], parts=parts) == []


def test_an_empty_part_overlaps_with_none():
    parts = {"test": {"start": 0, "characters": 0}, "train": {"start": 0, "characters": 3}}

    assert part_of(texts_of(2, 2), parts=parts) == [1, 1]


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
    ({"../a": {}}, "split.parts", "'../a'"),
    ({"é": {}}, "split.parts", "'é'"),
    ({"train": {"start": 0}, "no_part": {"start": 5}}, "split.parts", "'no_part'"),
]


@pytest.mark.parametrize(("parts", "where", "found"), REFUSED)
def test_parts_that_cannot_be_are_refused(parts: dict, where: str, found: str):
    with pytest.raises(ConfigError) as caught:
        assign(["abc"], parts=parts)

    assert (caught.value.where, caught.value.found) == (where, found)


def test_documents_are_only_cut_by_characters():
    with pytest.raises(ConfigError) as caught:
        assign(["abc"], parts={"train": {"documents": 9}}, boundary="character")

    assert (caught.value.where, caught.value.expected) == (
        "split.boundary",
        "document, or parts of the form {start, characters}",
    )


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
    pieces = assign(
        texts_of(*num_chars),
        parts=parts,
        boundary="character",
    )

    assert np.unique(pieces.document).tolist() == list(range(len(num_chars)))
    sums = np.bincount(pieces.document, weights=pieces.num_chars, minlength=len(num_chars))
    assert sums.tolist() == num_chars
    num_pieces = np.bincount(pieces.document, minlength=len(num_chars))[pieces.document]
    assert (pieces.is_cut == (num_pieces > 1)).all()
    assert pieces.num_chars[pieces.is_cut].all()

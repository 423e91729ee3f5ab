"""Characters that gigatoken and the reference split differently have the reference's tokens."""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from tokflow.pipeline.dataset import Dataset
from tokflow.store.tables import to_texts
from tokflow.tokenizers import BYTE_LETTERS, PATTERNS, pre_tokenizer_fields
from tokflow.tokenizers.engines import chunks, code_points, fast
from tokflow.tokenizers.engines.chunks import find_cut_rule
from tokflow.tokenizers.engines.code_points import (
    COMPARED,
    RANGES,
    CodePoints,
    RoutedEngine,
    code_points_for_reference,
    differing_points,
    ranges_of,
    unequal,
    write_crossing_tokenizer,
)
from tokflow.tokenizers.engines.fast import UNLIKE_PATTERNS, open_gigatoken
from tokflow.tokenizers.engines.gate import open_engine
from tokflow.tokenizers.engines.reference import BytesEngine, open_reference
from tokflow.tokenizers.tokenizer import Kind, Tokenizer
from tokflow_tests.outputs import token_lists
from tokflow_tests.special import made_tokenizer
from tokflow_tests.tiny import declare_texts, tokenize
from tokflow_tests.vocabularies import openai_pattern

of_the_compared = pytest.mark.skipif(
    tokenizers.__version__ != COMPARED["tokenizers"], reason="the table is of another tokenizers"
)
NO_LONGER_LOWER = 0x295
"""U+0295, since Unicode 17 a letter without case: only patterns with case tell."""
NEW_LETTERS = ("\U00033476", "\U00018d09", "\U00018d80", "\U00011db0", "\U00016ea0", "\U0001e6c0")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^"""
    "\r\n"
    r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["
    "\r\n"
    r"]*|\s*["
    "\r\n"
    r"]+|\s+(?!\S)|\s+",
]


def splits(*patterns: str, then: Any = ()) -> dict[str, Any]:
    """Return a pre-tokenizer of several patterns, and other steps before the bytes."""
    steps = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        for regex in patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*steps, *then, BYTES]}


def crossing_json(folder: Path, **fields: Any) -> Tokenizer:
    """Return a tokenizer with some fields, all of whose merges cross from character to another."""
    base = {"version": "1.0", "pre_tokenizer": pre_tokenizer_fields("gpt2"), "normalizer": None}
    nothing = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
    (folder / "tokenizer.json").write_text(json.dumps({**base, **nothing, **fields}))
    return crossing("file", folder)


def crossing_tiktoken(name: str, folder: Path) -> Tokenizer:
    """Return an encoding with the pattern that tiktoken has for `name`, without its vocabulary."""
    fields = {"name": name, "pattern": openai_pattern(name), "special_tokens": {}}
    (folder / "encoding.json").write_text(json.dumps(fields))
    return crossing("tiktoken", folder)


def crossing(kind: Kind, folder: Path) -> Tokenizer:
    saved = made_tokenizer(folder, kind, fingerprint=kind)
    (folder / "crossing").mkdir()
    return write_crossing_tokenizer(saved, folder / "crossing")


def dataset_of(tokenizer: Tokenizer, folder: Path, texts: list[str]) -> Dataset:
    path = tokenizer.folder / "tokenizer.json"
    return declare_texts(folder, texts, kind="file", name=str(path), eos="none")


def sample(table: Iterable[int], every: int = 20) -> list[list[int]]:
    """Return some of a table, the new letters and the code points beside them, as one range."""
    points = [*list(table)[::every], *map(ord, NEW_LETTERS)]
    return [sorted({point + step for point in points for step in (-1, 0, 1)})]


of_all_points = pytest.mark.parametrize(
    "of_all", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "all"]
)


@of_the_compared
@of_all_points
def test_the_table_holds_all_that_tokenizers_splits_otherwise(of_all: bool, tmp_path: Path):
    tokenizer = crossing_json(tmp_path, pre_tokenizer=splits(*DEEPSEEK))
    table = list(code_points_for_reference(tokenizer))

    ranges = RANGES if of_all else sample(table)
    found = differing_points(tokenizer, ranges)

    compared = {point for range_ in ranges for point in range_}
    assert found == [point for point in table if point in compared and point != NO_LONGER_LOWER]
    assert len(found) == 4_803 if of_all else len(found) > 240


@of_all_points
def test_the_table_holds_all_that_tiktoken_splits_otherwise(of_all: bool, tmp_path: Path):
    tokenizer = crossing_tiktoken("o200k_base", tmp_path)

    ranges = RANGES if of_all else sample(code_points_for_reference(tokenizer))
    found = differing_points(tokenizer, ranges)

    assert len(found) == 4_700 if of_all else len(found) > 240
    assert NO_LONGER_LOWER in found
    assert set(found) <= set(code_points_for_reference(tokenizer))


@pytest.mark.parametrize("pattern", ["gpt2", *PATTERNS])
def test_each_pattern_splits_the_rest_as_the_reference_does(pattern: str, tmp_path: Path):
    tokenizer = crossing_json(tmp_path, pre_tokenizer=pre_tokenizer_fields(pattern))
    table = list(code_points_for_reference(tokenizer))

    found = differing_points(tokenizer, sample(table, every=100))

    assert set(NEW_LETTERS) <= set(map(chr, found)) <= set(map(chr, table))


@of_the_compared
@of_all_points
def test_the_table_holds_all_marks_that_tokenizers_puts_in_another_order(
    of_all: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tokenizer = crossing_json(tmp_path, normalizer={"type": "NFC"})
    monkeypatch.setattr(code_points, "CONTEXTS", ("a\u0345{}\u0334",))

    ranges = [range(0x80, 0xAC00), range(0xE000, 0x20000)]
    marks = [0x7FD, 0x8CA, 0x1E130]
    ranges = ranges if of_all else sample([*code_points_for_reference(tokenizer)][::20] + marks, 1)
    found = differing_points(tokenizer, ranges)

    assert {0x7FD, 0x8CA, 0x1E130} <= set(found) <= set(code_points_for_reference(tokenizer))


@pytest.mark.parametrize("pattern", ["gpt2", "llama3", "qwen2", "o200k"])
def test_documents_with_a_new_letter_have_the_tokens_of_the_reference(pattern: str, tmp_path: Path):
    tokenizer = crossing_json(tmp_path, pre_tokenizer=pre_tokenizer_fields(pattern))
    texts = ["plain", *(f".{letter}.a{letter}a" for letter in NEW_LETTERS), "", "more"]
    texts += ["A\u0295Aa", ".\u0295\u4e2dAa"]
    engine, reference = open_engine(tokenizer), open_reference(tokenizer)

    encoded, expected = engine.encode(to_texts(texts)), reference.encode(to_texts(texts))

    assert engine.name == "gigatoken"
    assert encoded.token_ids.tolist() == expected.token_ids.tolist()
    assert encoded.offsets.tolist() == expected.offsets.tolist()
    alone = open_gigatoken(tokenizer, in_text="ordinary")
    found = unequal(texts, alone, reference)
    assert found[:6] == [1, 2, 3, 4, 5, 6]
    assert (9 in found) == (pattern == "o200k")  # in which letters have their case


@pytest.mark.parametrize("text", ["\U00011935\U00011930", "a\u0345\u07fd\u0334"])
def test_what_tokenizers_does_not_compose_or_reorder_is_left_as_it_leaves_it(
    text: str, tmp_path: Path
):
    tokenizer = crossing_json(tmp_path, normalizer={"type": "NFC"})
    reference = tokenizers.Tokenizer.from_file(str(tokenizer.folder / "tokenizer.json"))

    shard = tokenize(dataset_of(tokenizer, tmp_path / "made", ["x", text]))

    assert token_lists(shard)[1] == reference.encode(text, add_special_tokens=False).ids
    alone = open_gigatoken(tokenizer, in_text="ordinary").encode(to_texts([text]))
    assert alone.token_ids.tolist() != token_lists(shard)[1]


AROUND: list[tuple[str, chunks.CutRule | None, list[str]]] = [
    ("a, b\u07fdc, d e", chunks.NEAR, [" b\u07fdc,"]),
    ("a, b\u07fdc, d e", chunks.WIDE, ["a, b\u07fdc, d"]),
    ("a, b\u07fdc, d e", None, ["a, b\u07fdc, d e"]),
    ("a, b\u07fdc, d e", chunks.DROPPING, ["a, b\u07fdc, d e"]),
    (
        "\u07fd \u07fd1 \u07fd,\n2\n\u07fd",
        chunks.NEAR,
        ["\u07fd \u07fd1", " \u07fd,\n2", "\n\u07fd"],
    ),
    ('(0xA, "M", "\u07fd"),\n' * 2, chunks.NEAR, [' "\u07fd"),\n(0xA,', ' "\u07fd"),\n']),
]


@pytest.mark.parametrize(("text", "rule", "parts"), AROUND)
def test_the_text_around_a_code_point_goes_to_the_reference(
    text: str, rule: chunks.CutRule | None, parts: list[str], monkeypatch: pytest.MonkeyPatch
):
    asked = []

    class Recording(BytesEngine):
        def encode(self, texts: Any) -> Any:
            asked.extend(texts.to_pylist())
            return super().encode(texts)

    monkeypatch.setattr(code_points, "WHOLE_BYTES", 0)
    points = CodePoints([(0x7FD, 0x7FD)])
    engine = RoutedEngine(BytesEngine(), Recording(), points, lambda: rule)

    encoded = engine.encode(to_texts(["", text, "", "x"]))

    assert asked == parts
    assert bytes(encoded.token_ids.tolist()) == (text + "x").encode()
    num = len(text.encode())
    assert encoded.offsets.tolist() == [0, 0, num, num, num + 1]


def test_short_texts_with_a_code_point_go_to_the_reference_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(code_points, "WHOLE_BYTES", 4)
    asked: list[None] = []
    points = CodePoints([(0x7FD, 0x7FD)])
    engine = RoutedEngine(BytesEngine(), BytesEngine(), points, lambda: asked.append(None))

    for num_asked in (0, 0, 1, 2):
        engine.encode(to_texts(["longer", "\u07fd"]))

        assert len(asked) == num_asked


PIECES = (
    ".", ".\n", ",", "/", "'s", "_", ")", "\u00bd", "1", "23", "a", "Zz", "don't", "\u4e2d",
    "e\u0301", " ", "  ", "\n", " \n", "\r\n", "\t", "\u00a0", ". ", ",\n", "1 ", "2\n", "a\n",
    "\u0301 ",
)  # fmt: skip


@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}], ids=["", "NFC"])
@pytest.mark.parametrize("pattern", ["gpt2", "qwen2", "o200k"])
def test_the_parts_together_have_the_tokens_of_the_whole_texts(
    pattern: str, normalizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fields = {"pre_tokenizer": pre_tokenizer_fields(pattern), "normalizer": normalizer}
    tokenizer = crossing_json(tmp_path, **fields)
    monkeypatch.setattr(code_points, "WHOLE_BYTES", 0)
    rule = find_cut_rule(tokenizer, in_text="ordinary", widest=chunks.NEAR)
    assert rule is chunks.NEAR
    choose = random.Random(pattern)
    points = code_points_for_reference(tokenizer)
    fast, reference = open_gigatoken(tokenizer, in_text="ordinary"), open_reference(tokenizer)
    engine = RoutedEngine(fast, reference, points, lambda: rule)
    table = [*map(chr, points)]

    for share in (0.002, 0.05, 0.3):
        texts = [
            "".join(
                choose.choice(table if choose.random() < share else PIECES)
                for _ in range(choose.choice((0, 2, 10, 50)))
            )
            for _ in range(200)
        ]
        some = to_texts(texts).slice(3, 190)
        got, expected = engine.encode(some), reference.encode(some)

        assert got.token_ids.tolist() == expected.token_ids.tolist()
        assert got.offsets.tolist() == expected.offsets.tolist()


def test_code_points_are_found_wherever_they_stand():
    choose = random.Random(1)
    ranges = [(0x7FD, 0x7FD), (0x88F, 0x88F), (0x1ACF, 0x1ADD), (0x1F6D8, 0x1F6D8)]
    points = CodePoints(ranges)
    near = [a + step for a, _ in ranges for step in (-1, 0, 1, 64, 4_096)]
    texts = [
        "".join(chr(choose.choice((*near, 97, 0xE9))) for _ in range(choose.randint(0, 3)))
        for _ in range(2_000)
    ]

    found = points.positions_in(np.frombuffer("".join(texts).encode(), np.uint8)).tolist()

    starts = np.cumsum([0, *(len(character.encode()) for character in "".join(texts))])
    expected = [
        start
        for start, character in zip(starts.tolist(), "".join(texts), strict=False)
        if any(a <= ord(character) <= b for a, b in ranges)
    ]
    assert found == expected
    assert len(found) > 100


def test_a_set_of_code_points_may_be_empty():
    assert CodePoints([]).positions_in(np.frombuffer("a中".encode(), np.uint8)).tolist() == []
    assert ranges_of([]) == []
    assert ranges_of([5, 6, 9, 7]) == [(5, 7), (9, 9)]


def test_versions_that_were_not_compared_are_compared_when_they_are_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tokenizer = crossing_json(tmp_path)
    monkeypatch.setitem(code_points.COMPARED, "tokenizers", "0.1")
    points = range(0x10900, 0x10980)
    monkeypatch.setattr(code_points, "differing_points", lambda of: differing_points(of, [points]))

    assert ranges_of(code_points_for_reference(tokenizer)) == [(0x10940, 0x10959)]


def test_a_normalizer_of_another_version_is_left_to_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tokenizer = crossing_json(tmp_path, normalizer={"type": "NFC"})
    monkeypatch.setitem(code_points.COMPARED, "tokenizers", "0.1")

    engine = open_engine(tokenizer)

    assert engine.name == "tokenizers"
    assert "its NFC was compared with that of tokenizers 0.1, not of " in engine.reason


DIGITS = {"type": "Digits", "individual_digits": True}
LLAMA3 = splits(PATTERNS["llama3"])
TWICE = {**LLAMA3, "pretokenizers": [LLAMA3["pretokenizers"][0], {**BYTES, "use_regex": True}]}


@pytest.mark.parametrize("pattern", UNLIKE_PATTERNS, ids=["any number of digits", "no end"])
def test_patterns_that_oniguruma_reads_otherwise_go_to_the_reference(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tokenizer = crossing_json(tmp_path, pre_tokenizer=splits(pattern))

    engine = open_engine(tokenizer)

    assert engine.name == "tokenizers"
    assert "it splits otherwise by the pattern " in engine.reason
    monkeypatch.setattr(fast, "UNLIKE_PATTERNS", ())
    alone = open_gigatoken(tokenizer, in_text="ordinary")
    assert unequal(["\u00bd1\u00bd1\n "], alone, open_reference(tokenizer)) == [0]
    with pytest.raises(ValueError, match=r"it splits .* otherwise"):
        differing_points(tokenizer, [])


@pytest.mark.parametrize(
    "pre_tokenizer",
    [splits(PATTERNS["llama3"], then=[DIGITS]), TWICE],
    ids=["Digits", "a second pattern"],
)
def test_steps_that_gigatoken_leaves_out_go_to_the_reference(
    pre_tokenizer: dict[str, Any], tmp_path: Path
):
    merges = [["9", "8"], [".", "Ċ"]]  # which no awkward string has
    vocab = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)} | {"98": 256, ".Ċ": 257}
    model = {"type": "BPE", "vocab": vocab, "merges": merges}
    tokenizer = crossing_json(tmp_path, pre_tokenizer=pre_tokenizer)
    path = tokenizer.folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model": model}))
    texts = ["98", "so.\n"]

    engine = open_engine(tokenizer)

    expected = open_reference(tokenizer).encode(to_texts(texts)).token_ids
    np.testing.assert_array_equal(engine.encode(to_texts(texts)).token_ids, expected)
    assert engine.name == "tokenizers"

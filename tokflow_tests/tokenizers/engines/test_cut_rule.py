import io
import json
import random
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sentencepiece
import tiktoken
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from tokflow.store.tables import to_texts
from tokflow.tokenizers.engines import Encoded, chunks
from tokflow.tokenizers.engines.chunks import CHUNKED_BYTES, ChunkedEngine, CutRule, find_cut_rule
from tokflow.tokenizers.engines.fast import open_gigatoken
from tokflow.tokenizers.engines.gate import open_engine
from tokflow.tokenizers.engines.hugging_face import load_tokenizer_json
from tokflow.tokenizers.engines.reference import BytesEngine, SentencePieceEngine, TiktokenEngine
from tokflow.tokenizers.tokenizer import Tokenizer as SavedTokenizer
from tokflow.tokenizers.tokenizer import write_ranks
from tokflow_tests.special import made_tokenizer
from tokflow_tests.texts import awkward_strings
from tokflow_tests.vocabularies import LLAMA3_PATTERN, QWEN_PATTERN, openai_pattern

GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
CL100K = openai_pattern("cl100k_base")

PATTERNS = {
    "gpt2": GPT2, "cl100k": CL100K, "o200k": openai_pattern("o200k_base"),
    "llama3": LLAMA3_PATTERN, "qwen2": QWEN_PATTERN,
}  # fmt: skip

PIECES = (
    "a", "b", "the", "Foo", "x y", "b\n", "don't", "'s", "é", "e\u0301", "漢字", "中", "ß",
    "12", "123", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200b",
    "\u0301", ".", "...", "...\n", "!/", "_", "<m>", "</s>", "bar", "👍🏽", "▁", "Ġ", "\x00", "``",
    "Σ", "ſ",
)  # fmt: skip
CHOOSE = random.Random("chunks")
TEXTS = ["".join(CHOOSE.choices(PIECES, k=CHOOSE.randint(0, 40))) for _ in range(120)]

BYTE_LEVEL = partial(pre_tokenizers.ByteLevel, add_prefix_space=False)

WORDS = "the foo bar a b x y don't 12 漢字 中 ...\n"


def trained(model: Any, trainer: Any, *steps: Any, texts: Sequence[str] = ()) -> Tokenizer:
    """Return a model trained with a pre-tokenizer, and a normalizer, if they are given."""
    tokenizer = Tokenizer(model)
    for name, step in zip(("pre_tokenizer", "normalizer"), steps, strict=False):
        if step is not None:
            setattr(tokenizer, name, step)
    texts = texts or [*awkward_strings()[::40], *[WORDS * 3] * 40]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def in_turn(*steps: Any) -> Any:
    return pre_tokenizers.Sequence(list(steps))


def cut_by(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def bpe(pre_tokenizer: Any = None, normalizer: Any = None, **model: Any) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return trained(models.BPE(**model), trainer, pre_tokenizer, normalizer)


def split(pattern: str, normalizer: Any = None, *, prefix: bool = False) -> Tokenizer:
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
    return bpe(in_turn(cut_by(pattern), to_bytes), normalizer)


def without_crossing_merges(tokenizer: Tokenizer) -> Tokenizer:
    """Return a BPE without the merges that lead to a token of a letter before a space.

    As SentencePiece's trainer makes them, which never merges across a space.
    """
    fields = json.loads(tokenizer.to_str())
    model = fields["model"]
    crosses = {token for token in model["vocab"] if "▁" in token.lstrip("▁")}
    model["merges"] = [pair for pair in model["merges"] if not {"".join(pair), *pair} & crosses]
    model["vocab"] = {
        token: index for token, index in model["vocab"].items() if token not in crosses
    }
    return Tokenizer.from_str(json.dumps(fields))


def llama2() -> Tokenizer:
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer = bpe(None, normalizer, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer.decoder = decoders.ByteFallback()
    return without_crossing_merges(tokenizer)


def metaspace(scheme: str, *, is_split: bool = True) -> Tokenizer:
    tokenizer = bpe(
        pre_tokenizers.Metaspace(prepend_scheme=scheme, split=is_split), unk_token="<unk>"
    )
    return tokenizer if is_split else without_crossing_merges(tokenizer)


def word_piece() -> Tokenizer:
    special = ["[UNK]", "</s>"]
    trainer = trainers.WordPieceTrainer(vocab_size=800, special_tokens=special, show_progress=False)
    steps = pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer()
    return trained(models.WordPiece(unk_token="[UNK]"), trainer, *steps)


def unigram(pre_tokenizer: Any = None) -> Tokenizer:
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    return trained(models.Unigram(), trainer, pre_tokenizer, texts=["the foo bar 12 don't"] * 9)


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": lambda: bpe(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "byte_level_prefix_space": lambda: bpe(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    **{name: partial(split, pattern) for name, pattern in PATTERNS.items()},
    "nfc_qwen2": lambda: split(QWEN_PATTERN, normalizers.NFC()),
    "nfkc_lowercase": lambda: split(
        GPT2, normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    ),
    "prefix_space_cl100k": lambda: split(CL100K, prefix=True),
    "digits_then_gpt2": lambda: bpe(
        in_turn(cut_by(r"\p{N}{1,3}"), pre_tokenizers.Punctuation(), BYTE_LEVEL())
    ),
    "split_at_spaces": lambda: with_merge_across_a_line_end(pre_tokenizers.Split(" ", "isolated")),
    "metaspace_always": lambda: metaspace("always"),
    "metaspace_first": lambda: metaspace("first"),
    "metaspace_never": lambda: metaspace("never"),
    "metaspace_without_split": lambda: metaspace("first", is_split=False),
    "llama2": llama2,
    "word_piece": word_piece,
    "unigram_of_words": lambda: unigram(
        in_turn(pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first"))
    ),
    "unigram_metaspace": lambda: unigram(pre_tokenizers.Metaspace()),
    "added_tokens": lambda: with_added(bpe(pre_tokenizers.ByteLevel(add_prefix_space=False))),
}


def with_added(tokenizer: Tokenizer) -> Tokenizer:
    spaces, word = AddedToken("  ", normalized=False), AddedToken("bar", single_word=True)
    tokenizer.add_tokens([spaces, AddedToken("<m>", lstrip=True, rstrip=True), word])
    return tokenizer


def with_merge_across_a_line_end(step: Any) -> Tokenizer:
    """Return a BPE with the token of a letter and a line end, after a step that cuts at spaces."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    vocab = {letter: id_ for id_, letter in enumerate([*sorted(letters), "bĊ"])}
    tokenizer = Tokenizer(models.BPE(vocab, [("b", "Ċ")]))
    tokenizer.pre_tokenizer = in_turn(step, BYTE_LEVEL(use_regex=False))
    return tokenizer


def saved(tokenizer: Tokenizer, folder: Any) -> SavedTokenizer:
    tokenizer.save(str(folder / "tokenizer.json"))
    return made_tokenizer(folder)


def in_chunks(engine: Any, rule: chunks.CutRule | None) -> ChunkedEngine:
    """Return the engine in chunks of a few bytes."""
    return ChunkedEngine(
        engine, lambda: rule, dtype=np.dtype("<u2"), chunk_bytes=2, chunked_bytes=8, batch_bytes=20
    )


def assert_same_tokens(few: Any, whole: Any) -> None:
    """Compare two engines on many texts."""
    texts = to_texts(TEXTS)
    pairs = zip(few.encode(texts).documents(), whole.encode(texts).documents(), strict=True)
    for text, (got, expected) in zip(TEXTS, pairs, strict=True):
        assert got.tolist() == expected.tolist(), text


@pytest.mark.parametrize("name", FAMILIES)
def test_the_tokens_of_the_chunks_are_the_tokens_of_the_whole(name: str, tmp_path: Path):
    tokenizer = saved(FAMILIES[name](), tmp_path)
    content = (tmp_path / "tokenizer.json").read_bytes()
    for in_text in ("ordinary", "control"):
        engine = load_tokenizer_json(content, in_text)
        rule = find_cut_rule(tokenizer, in_text=in_text, widest=chunks.NEAR)
        rule = rule or find_cut_rule(tokenizer, in_text=in_text)
        assert rule is not None

        assert_same_tokens(in_chunks(engine, rule), engine)


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_tiktoken_in_chunks_gives_the_tokens_of_the_whole(pattern: str, tmp_path: Path):
    ranks = {bytes([byte]): byte for byte in range(256)}
    for word in (b" a", b"th", b"the", b" f", b"oo", b"\n\n", b"  ", b"x ", b" y", b"r\n"):
        ranks[word] = len(ranks)
    special_tokens = {"</s>": 400, "<m>": 401}
    save_encoding(tmp_path, pattern, ranks, special_tokens)
    encoding = tiktoken.Encoding(
        "test", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special_tokens
    )
    rule = find_cut_rule(
        made_tokenizer(tmp_path, "tiktoken"), in_text="control", widest=chunks.NEAR
    )
    whole = TiktokenEngine(encoding, in_text="control")
    assert rule is chunks.NEAR

    assert_same_tokens(in_chunks(whole, rule), whole)


def save_encoding(folder: Path, pattern: str, ranks: dict[bytes, int], special: dict[str, int]):
    write_ranks(ranks, folder / "ranks.tiktoken")
    fields = {"name": "test", "pattern": pattern, "special_tokens": special}
    (folder / "encoding.json").write_text(json.dumps(fields))


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
TO_BAR = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
GPT2_AND_BYTES = {"model": {"type": "BPE", "vocab": {"a": 0, " ": 1}}, "pre_tokenizer": BYTES}


def by(pattern: str) -> dict[str, Any]:
    steps = {"pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    own = [{"type": "Split", **steps}, {**BYTES, "use_regex": False}]
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": own}}


def adding(content: str, **flags: bool) -> dict[str, Any]:
    known = dict.fromkeys(("special", "lstrip", "rstrip", "normalized"), False)
    return {"added_tokens": [{"content": content, **known, **flags}]}


def replacing(pattern: dict[str, str], content: str = "") -> dict[str, Any]:
    return {"normalizer": {"type": "Replace", "pattern": pattern, "content": content}}


def normalizing(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": list(steps)}}


def whole_words(*pieces: str, **model: Any) -> dict[str, Any]:
    vocab = {piece: id_ for id_, piece in enumerate(pieces)}
    return {"model": {"type": "BPE", "vocab": vocab, **model}, "pre_tokenizer": METASPACE}


UPPER_THEN_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
TO_TILDE = {"type": "Replace", "pattern": {"String": "▁"}, "content": "~"}


PREPEND = {"type": "Prepend", "prepend": "▁"}
STAYING = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}
LIKE_LLAMA2 = {"model": {"type": "BPE", "vocab": {"a": 0, "▁": 1}}} | normalizing(PREPEND, TO_BAR)

PROVEN = {"gpt2": GPT2_AND_BYTES, "llama2": LIKE_LLAMA2, "metaspace": whole_words("a", "▁")}
UNPROVEN: dict[str, dict[str, Any]] = {
    "no_step_cuts_and_merges_cross_spaces": whole_words("o", "▁", "o▁"),
    "merges_ignore_the_vocabulary": whole_words("o", "▁", ignore_merges=True),
    "unknown_letters_and_spaces_are_one": whole_words("o", fuse_unk=True),
    "unigram_without_a_step_that_cuts": {
        "model": {"type": "Unigram", "vocab": []},
        "pre_tokenizer": METASPACE,
    },
    "an_unknown_pattern": GPT2_AND_BYTES | by(r"\w+ \w+|\s|."),
    "a_pattern_that_looks_back": GPT2_AND_BYTES | by(r"(?<=a) ?\p{L}+| ?\p{L}+|\s+"),
    "a_pattern_without_letters": GPT2_AND_BYTES | by(r"\p{N}{1,3}|\s*[\r\n]+"),
    "a_pattern_that_leaves_white_space_to_itself": GPT2_AND_BYTES | by(UPPER_THEN_LOWER),
    "spaces_stay_with_the_word_before": GPT2_AND_BYTES | {"pre_tokenizer": STAYING},
    "a_normalizer_that_strips": GPT2_AND_BYTES | {"normalizer": {"type": "Strip"}},
    "a_normalizer_that_drops_spaces": GPT2_AND_BYTES | replacing({"String": " "}),
    "a_normalizer_of_a_pattern": GPT2_AND_BYTES | replacing({"Regex": "a +b"}, "c"),
    "a_normalizer_that_replaces_nothing": GPT2_AND_BYTES | replacing({"String": ""}, "x"),
    "a_prefix_without_its_spaces": GPT2_AND_BYTES | {"normalizer": PREPEND},
    "spaces_that_are_replaced_twice": whole_words("o", "▁") | normalizing(TO_BAR, TO_TILDE),
    "a_prefix_space_after_spaces_are_replaced": GPT2_AND_BYTES
    | {"pre_tokenizer": {**BYTES, "add_prefix_space": True}, "normalizer": TO_BAR},
    "an_added_token_with_a_space": GPT2_AND_BYTES | adding("foo bar"),
    "an_added_token_that_takes_the_space_after_it": GPT2_AND_BYTES | adding("bar", rstrip=True),
    "an_added_token_whose_accent_goes": GPT2_AND_BYTES
    | normalizing({"type": "NFD"}, {"type": "StripAccents"})
    | adding("é b", normalized=True),
    "an_added_token_of_normalized_text": LIKE_LLAMA2 | adding("a▁b", normalized=True),
    "an_added_token_that_is_normalized_itself": GPT2_AND_BYTES
    | normalizing({"type": "NFKC"})
    | adding("Ａ b", normalized=True),
    "an_added_token_that_needs_no_word_before_it": GPT2_AND_BYTES | adding(" b", single_word=True),
    "a_prefix_lost_before_an_added_token": LIKE_LLAMA2 | adding("bar"),
    "a_prefix_before_an_added_token_with_a_space": LIKE_LLAMA2 | adding(" b"),
}


def made_of(fields: dict[str, Any], folder: Path) -> SavedTokenizer:
    (folder / "tokenizer.json").write_text(json.dumps(fields))
    return made_tokenizer(folder)


def test_where_no_place_is_proven_a_document_goes_whole(tmp_path: Path):
    for name, fields in (PROVEN | UNPROVEN).items():
        rule = find_cut_rule(made_of(fields, tmp_path), in_text="control")

        assert (rule is not None) == (name in PROVEN), name


def test_a_special_token_with_a_space_matters_only_where_it_is_found(tmp_path: Path):
    kept = made_of(GPT2_AND_BYTES | adding("end of", special=True), tmp_path)

    assert find_cut_rule(kept, in_text="ordinary") is chunks.WIDE
    assert find_cut_rule(kept, in_text="control") is None


def test_an_added_token_may_span_a_place_of_the_wider_rule_alone(tmp_path: Path):
    for content, flags in (("1 b", {}), ("f. b", {}), ("<m>", {"rstrip": True})):
        kept = made_of(GPT2_AND_BYTES | adding(content, **flags), tmp_path)

        assert find_cut_rule(kept, in_text="ordinary", widest=chunks.NEAR) is None
        assert find_cut_rule(kept, in_text="ordinary") is chunks.WIDE


def test_steps_that_are_no_patterns_have_no_wider_rule(tmp_path: Path):
    for fields in (GPT2_AND_BYTES | normalizing({"type": "Lowercase"}), LIKE_LLAMA2):
        narrow = find_cut_rule(made_of(fields, tmp_path), in_text="ordinary")

        assert narrow in (chunks.NARROW, chunks.DROPPING)
        made = made_tokenizer(tmp_path)
        assert find_cut_rule(made, in_text="ordinary", widest=chunks.NEAR) is narrow


def test_bytes_may_be_cut_between_any_two_characters(tmp_path: Path):
    rule = find_cut_rule(made_tokenizer(tmp_path, "bytes"), in_text="ordinary")
    assert rule is not None

    cut = [match.end() for match in rule.place.finditer("aé漢".encode())]

    assert cut == [1, 3]


MODELS: dict[str, dict[str, Any]] = {
    "byte_fallback": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "nmt_nfkc": {},
    "without_prefix": {"add_dummy_prefix": False, "remove_extra_whitespaces": False},
    "user_defined": {"user_defined_symbols": ["<m>", "   "]},
}


def sentencepiece_model(folder: Path, **options: Any) -> SavedTokenizer:
    model = io.BytesIO()
    texts = ["the foo bar a b x y don't 12 漢字 中 ...", "Foo  bar\tthe 123 été"] * 20
    how = {"vocab_size": 400, "hard_vocab_limit": False, "model_type": "bpe", "byte_fallback": True}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, minloglevel=2, **{**how, **options}
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    return made_tokenizer(folder, "sentencepiece")


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_sentencepiece_bpe_in_chunks_gives_the_tokens_of_the_whole(
    options: dict[str, Any], tmp_path: Path
):
    tokenizer = sentencepiece_model(tmp_path, **options)
    for in_text in ("ordinary", "control"):
        whole = SentencePieceEngine(tmp_path / "tokenizer.model", in_text=in_text)
        rule = find_cut_rule(tokenizer, in_text=in_text)
        assert rule is not None

        assert_same_tokens(in_chunks(whole, rule), whole)


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "unigram"},
        {"treat_whitespace_as_suffix": True},
        {"add_dummy_prefix": False},
        {"user_defined_symbols": ["foo bar"]},
    ],
    ids=str,
)
def test_a_sentencepiece_model_without_a_proven_place_has_no_rule(
    options: dict[str, Any], tmp_path: Path
):
    tokenizer = sentencepiece_model(tmp_path, **options)

    assert find_cut_rule(tokenizer, in_text="ordinary") is None


def test_a_rule_that_changes_a_token_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    tokenizer = saved(bpe(BYTE_LEVEL()), tmp_path)
    wrong = chunks.CutRule(re.compile(b"[a-z](?=[a-z])"))
    monkeypatch.setattr("tokflow.tokenizers.engines.gate.find_cut_rule", lambda *_, **__: wrong)
    text = "the foo bar " * (CHUNKED_BYTES // 10)

    encoded = open_engine(tokenizer, choice="gigatoken").encode(to_texts([text]))

    whole = open_gigatoken(tokenizer, in_text="ordinary").encode(to_texts([text]))
    assert np.array_equal(encoded.token_ids, whole.token_ids)
    assert encoded.token_ids.dtype == np.uint32, "it was encoded in chunks"


BEFORE_SPACE = CutRule(re.compile(rb"[a-z](?= )"))


class Recorder:
    """Bytes as tokens, and what the engine was given to make them of."""

    name = "recorder"

    def __init__(self, first_id: int = 0) -> None:
        self.given: list[list[str]] = []
        self._first_id = first_id

    def encode(self, texts: pa.LargeStringArray) -> Encoded:
        self.given.append(texts.to_pylist())
        encoded = BytesEngine().encode(texts)
        token_ids = encoded.token_ids.astype(np.uint32) + np.uint32(self._first_id)
        return Encoded(token_ids=token_ids, offsets=encoded.offsets)


def engine(recorder: Recorder, rule: CutRule | None = BEFORE_SPACE) -> ChunkedEngine:
    return ChunkedEngine(
        recorder, lambda: rule, dtype=np.dtype("<u2"), chunk_bytes=3, chunked_bytes=6, batch_bytes=6
    )


def test_a_long_text_is_given_in_chunks_and_comes_back_as_one():
    recorder = Recorder()
    texts = to_texts(["zz", "", "ab cd ef gh", "x y"])[1:]

    encoded = engine(recorder).encode(texts)

    assert recorder.given == [["", "ab cd"], [" ef gh"], ["x y"]]
    assert [bytes(ids.tolist()) for ids in encoded.documents()] == [b"", b"ab cd ef gh", b"x y"]


def test_the_space_that_the_tokenizer_adds_is_left_out_of_the_chunks():
    recorder = Recorder()
    rule = CutRule(BEFORE_SPACE.place, num_dropped=1)

    engine(recorder, rule).encode(to_texts(["ab cd ef gh"]))

    assert recorder.given == [["ab cd"], ["ef gh"]]


@pytest.mark.parametrize(("first_id", "itemsize"), [(0, 2), (65_535, 4)])
def test_ids_are_kept_small_unless_one_does_not_fit(first_id: int, itemsize: int):
    encoded = engine(Recorder(first_id)).encode(to_texts(["ab cd ef gh"]))

    assert encoded.token_ids.dtype.itemsize == itemsize
    assert int(encoded.token_ids[0]) == first_id + ord("a")

"""Each family of tokenizers, token for token against the library that defines it."""

import io
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import quicktok
import sentencepiece
import tiktoken
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tokflow.documents import DocumentsConfig
from tokflow.tokenizers.engines.code_points import COMPARED
from tokflow.tokenizers.engines.gate import AWKWARD_STRINGS, GatedEngine
from tokflow.tokenizers.tokenizer import Tokenizer, TokenizerConfig, resolve_encoding
from tokflow.tokens.encoder import engine_for
from tokflow_tests.texts import find_shared
from tokflow_tests.tiny import declare_texts, save_tokenizer
from tokflow_tests.vocabularies import (
    LLAMA3_PATTERN,
    QWEN_PATTERN,
    byte_level_fields,
    first_ranks,
    openai_pattern,
    write_json,
)

POLICIES = ("ordinary", "control")
SIZES = (1, 3, 17, 101, 1997)
"""Texts in a batch, in turn, where batches are cut differently."""

Reference = Callable[[Sequence[str], str], list[list[int]]]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A tokenizer's config and its own library."""

    config: dict[str, Any]
    reference: Reference
    """From texts and policy to ids, without tokflow."""
    encodings: dict[str, tiktoken.Encoding] = field(default_factory=dict)
    """What tiktoken has in place of its own."""
    opinions: tuple[Reference, ...] = ()
    """Other libraries that must give the same ids."""


def source_files() -> list[Path]:
    """Return some of the standard library's sources, those with much else than ASCII first."""
    folder = Path(os.__file__).parent
    names = ("test/test_unicodedata.py", "sre_constants.py", "textwrap.py", "heapq.py", "this.py")
    named = [folder / name for name in (*names, "functools.py", "csv.py", "html/entities.py")]
    return [path for path in named if path.is_file()]


def some_texts() -> list[str]:
    sources = (path.read_text(encoding="utf-8") for path in source_files())
    texts = [*AWKWARD_STRINGS, *(source[:4_000] for source in sources)]
    for name in ("tinyshakespeare.txt", "wikitext2-valid.txt"):
        path = find_shared() / "corpora" / name
        if path.is_file():
            texts.append(path.read_text(encoding="utf-8")[:10_000])
    return texts


TEXTS = some_texts()


def from_tiktoken(name: str) -> Reference:
    def reference(texts: Sequence[str], policy: str) -> list[list[int]]:
        encoding = tiktoken.get_encoding(name)
        if policy == "ordinary":
            return encoding.encode_ordinary_batch(list(texts))
        return encoding.encode_batch(list(texts), allowed_special="all")

    return reference


def from_json(path: Path) -> Reference:
    tokenizer = tokenizers.Tokenizer.from_file(str(path))

    def reference(texts: Sequence[str], policy: str) -> list[list[int]]:
        tokenizer.encode_special_tokens = policy == "ordinary"
        encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    return reference


def from_quicktok(name: str) -> Reference:
    def reference(texts: Sequence[str], policy: str) -> list[list[int]]:
        encoding = quicktok.get_encoding(name)
        if policy == "ordinary":
            return [list(encoding.encode_ordinary(text)) for text in texts]
        return [list(encoding.encode(text, allowed_special="all")) for text in texts]

    return reference


def from_sentencepiece(model: bytes, symbols: Iterable[str]) -> Reference:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    spelt = re.compile(f"({'|'.join(map(re.escape, symbols))})")

    def control(text: str) -> list[int]:
        ids: list[int] = []
        for index, part in enumerate(spelt.split(text)):
            ids += [processor.piece_to_id(part)] if index % 2 else processor.encode(part)
        return ids

    def reference(texts: Sequence[str], policy: str) -> list[list[int]]:
        if policy == "ordinary":
            return [processor.encode(text) for text in texts]
        return [control(text) for text in texts]

    return reference


def openai(name: str, *, size: int | None = None, ranks_of: str = "") -> Family:
    """Return an encoding of tiktoken's, with its first tokens alone, or those of another."""
    ranks, special = first_ranks((ranks_of or name).removesuffix("_base"), size)
    encoding = tiktoken.Encoding(
        name, pat_str=openai_pattern(name), mergeable_ranks=ranks, special_tokens=special
    )
    return Family(
        config={"kind": "tiktoken", "name": name},
        reference=from_tiktoken(name),
        encodings={name: encoding},
        opinions=() if size else (from_quicktok(name),),
    )


def published(folder: Path, fields: dict[str, Any], eos: str, *others: Reference) -> Family:
    write_json(fields, folder, eos_token=eos)
    return Family(
        config={"kind": "huggingface", "name": str(folder)},
        reference=from_json(folder / "tokenizer.json"),
        opinions=others,
    )


def llama3(folder: Path, size: int | None = None) -> Family:
    fields = byte_level_fields("llama3", pattern=LLAMA3_PATTERN, ignore_merges=True, size=size)
    return published(folder, fields, "<|end_of_text|>", *_all_of("llama3", size))


def qwen(folder: Path, size: int | None = None) -> Family:
    normalizer = {"type": "NFC"}
    fields = byte_level_fields("qwen3", pattern=QWEN_PATTERN, normalizer=normalizer, size=size)
    return published(folder, fields, "<|endoftext|>", *_all_of("qwen3", size))


def _all_of(name: str, size: int | None) -> list[Reference]:
    return [from_quicktok(name)] if size is None else []


def lines(every: int = 4) -> Iterator[str]:
    for path in source_files():
        yield from filter(None, path.read_text(encoding="utf-8").splitlines()[::every])


def train_sentencepiece(**options: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines(), model_writer=model, minloglevel=2, num_threads=2, **options
    )
    return model.getvalue()


SPM_BPE = {"model_type": "bpe", "vocab_size": 1_500, "byte_fallback": True}
SYMBOLS = {"user_defined_symbols": ["<|im_start|>"], "control_symbols": ["<|endoftext|>"]}
LIKE_LLAMA = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}


def spm(folder: Path, **options: Any) -> Family:
    model = train_sentencepiece(**options)
    folder.mkdir()
    (folder / "own.model").write_bytes(model)
    symbols = ("<unk>", "<s>", "</s>", *options.get("control_symbols", ()))
    return Family(
        config={"kind": "sentencepiece", "name": str(folder / "own.model")},
        reference=from_sentencepiece(model, symbols),
    )


def word_piece(folder: Path) -> Family:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=2_000, special_tokens=special, show_progress=False
    )
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(lines(1), trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "own.json"))
    return Family(
        config={"kind": "file", "name": str(folder / "own.json"), "eos_token": "[SEP]"},
        reference=from_json(folder / "own.json"),
    )


def bytes_and_specials() -> list[str]:
    return ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]


@cache
def fallback_json() -> str:
    """Return a BPE that spells unknown characters in bytes, as Llama 2's and Mistral's do."""
    tokenizer = tokenizers.Tokenizer(
        models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=1_500, special_tokens=bytes_and_specials(), show_progress=False
    )
    tokenizer.train_from_iterator(lines(1), trainer)
    return tokenizer.to_str()


def fallback_bpe(folder: Path, *, pre_tokenizer: Any = None, normalizer: Any = None) -> Family:
    tokenizer = tokenizers.Tokenizer.from_str(fallback_json())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.normalizer = normalizer
    fields = json.loads(tokenizer.to_str())
    fields["added_tokens"] = fields["added_tokens"][:3]  # the bytes are pieces, no added tokens
    return published(folder, fields, "</s>")


def metaspace(folder: Path, scheme: str, *, split: bool) -> Family:
    spaces = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    return fallback_bpe(folder, pre_tokenizer=spaces)


def llama2(folder: Path) -> Family:
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    return fallback_bpe(folder, normalizer=normalizers.Sequence(steps))


WHOLE: dict[str, Callable[[Path], Family]] = {
    "cl100k, whole": lambda _: openai("cl100k_base"),
    "o200k, whole": lambda _: openai("o200k_base"),
    "Llama 3, whole": llama3,
    "Qwen, whole": qwen,
}
"""Vocabularies of 100,000 tokens and more, as they are published."""

FEW = 4_000
"""Tokens of such a vocabulary that are enough to see how it splits and merges."""

FAMILIES: dict[str, Callable[[Path], Family]] = {
    "r50k": lambda _: openai("r50k_base", size=FEW, ranks_of="cl100k"),
    "cl100k": lambda _: openai("cl100k_base", size=FEW),
    "o200k": lambda _: openai("o200k_base", size=FEW),
    "Llama 3": lambda folder: llama3(folder, FEW),
    "Qwen": lambda folder: qwen(folder, FEW),
    "SentencePiece BPE": lambda folder: spm(folder, **SPM_BPE, **LIKE_LLAMA),
    "SentencePiece BPE, symbols": lambda folder: spm(folder, **SPM_BPE, **LIKE_LLAMA, **SYMBOLS),
    "SentencePiece BPE, NFKC": lambda folder: spm(folder, **SPM_BPE),
    "SentencePiece unigram": lambda folder: spm(folder, model_type="unigram", vocab_size=500),
    "WordPiece": word_piece,
    "metaspace, always": lambda folder: metaspace(folder, "always", split=True),
    "metaspace, first, whole": lambda folder: metaspace(folder, "first", split=False),
    "Llama 2": llama2,
}

NOT_GIGATOKEN = {
    "SentencePiece BPE, symbols": "'<|im_start|>user\\n' became [",
    "SentencePiece BPE, NFKC": "' became [",
    "SentencePiece unigram": "only BPE sentencepiece models are supported, got model_type 'uni",
    "WordPiece": 'gigatoken does not take this tokenizer: Unsupported model type "WordPiece"',
}
"""Families that the reference runs, and a part of the reason."""
if tokenizers.__version__ != COMPARED["tokenizers"]:
    NOT_GIGATOKEN["Qwen"] = "its NFC was compared with that of tokenizers "
    NOT_GIGATOKEN["Qwen, whole"] = NOT_GIGATOKEN["Qwen"]


@dataclass(frozen=True)
class Ready:
    """A family, saved into a store."""

    name: str
    family: Family
    tokenizer: Tokenizer
    folder: Path


@pytest.fixture(
    scope="module",
    params=[*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in WHOLE)],
)
def ready(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ready]:
    folder = tmp_path_factory.mktemp("family")
    family = (FAMILIES | WHOLE)[request.param](folder / "own")
    with pytest.MonkeyPatch.context() as patch:
        for name, encoding in family.encodings.items():
            patch.setitem(tiktoken.registry.ENCODINGS, name, encoding)
        tokenizer = save_tokenizer(declare_texts(folder, ["a"], **family.config))
        yield Ready(request.param, family, tokenizer, folder)


def open_as_a_shard_does(ready: Ready, choice: str, policy: str) -> GatedEngine:
    config = TokenizerConfig(
        **{**ready.family.config, "engine": choice, "special_tokens_in_text": policy}
    )
    return engine_for(resolve_encoding(config, ready.tokenizer), DocumentsConfig())


def encode_in_batches(engine: GatedEngine, texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of texts that were cut into batches of odd sizes."""
    sizes = itertools.cycle(SIZES)
    rest, documents = list(texts), []
    while rest:
        size = next(sizes)
        documents += encode(engine, rest[:size])
        rest = rest[size:]
    return documents


def encode(engine: GatedEngine, texts: Sequence[str]) -> list[list[int]]:
    encoded = engine.encode(pa.array(texts, pa.large_string()))
    return [encoded.document(index).tolist() for index in range(len(texts))]


def first_difference(got: list[list[int]], expected: list[list[int]]) -> str | None:
    assert len(got) == len(expected)
    for text, ids, wanted in zip(itertools.cycle(TEXTS), got, expected, strict=False):
        if ids != wanted:
            return f"{text[:60]!r}: {ids[:12]} and not {wanted[:12]}"
    return None


@pytest.mark.parametrize("policy", POLICIES)
def test_every_token_is_that_of_the_familys_own_library(ready: Ready, policy: str):
    expected = ready.family.reference(TEXTS, policy)

    auto, reference = (open_as_a_shard_does(ready, c, policy) for c in ("auto", "reference"))

    assert first_difference(encode(reference, TEXTS), expected) is None
    assert first_difference(encode_in_batches(auto, TEXTS), expected) is None
    for opinion in ready.family.opinions:
        assert first_difference(opinion(TEXTS, policy), expected) is None
    if ready.name in NOT_GIGATOKEN:
        assert auto.name == reference.name
        assert NOT_GIGATOKEN[ready.name] in auto.reason
    else:
        assert auto.name == "gigatoken"
        assert re.fullmatch(rf"equal to {reference.name} on [24],\d+ awkward strings", auto.reason)


@pytest.mark.slow
@pytest.mark.parametrize("ready", ["o200k, whole"], indirect=True)
def test_o200k_gives_the_tokens_of_tiktoken_for_a_letter_that_unicode_17_took_the_case_of(
    ready: Ready,
):
    auto = open_as_a_shard_does(ready, "auto", "ordinary")

    assert encode(auto, ["\u0295无码AVa"]) == [[134, 243, 9070, 5345, 64]]
    assert ready.family.reference(["\u0295无码AVa"], "ordinary") == [[134, 243, 9070, 5345, 64]]

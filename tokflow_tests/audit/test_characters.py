"""Characters are those of the raw text, whatever the tokenizer makes of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tokflow.audit.trace import TokenOrigin, trace_tokens
from tokflow_tests import special
from tokflow_tests.chats import chat, chat_dataset, save_chat_tokenizer
from tokflow_tests.cli.commands import run
from tokflow_tests.tiny import build, declare, write_raw

EXPORT = Path("store/tiny/exports/npy")
NFC, NFKC = normalizers.NFC(), normalizers.NFKC()
LIGATURE = "e\u0301 ﬁx"  # NFC: 4 characters of 5; NFKC: as many as there were, others
CONTROL = normalizers.Replace(Regex("[\u0000-\u001f]"), "")


def byte_level(normalizer: Any) -> str:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer.to_str()


def word_piece() -> str:
    tokenizer = Tokenizer(
        models.WordPiece({"[UNK]": 0, "wort": 1, "##e": 2, "a": 3}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer.to_str()


def declared(folder: Path, text: str, tokenizer: str | dict[str, Any], **attributes: Any) -> Any:
    if isinstance(tokenizer, str):
        (folder / "own.json").write_text(tokenizer)
        tokenizer = {"kind": "file", "name": "own.json", "eos_token": "</s>"}
    files = {"a.jsonl": ["first", text]}
    return declare(folder, files, tokenizer=tokenizer, exports=["npy"], **attributes)


def origins(export: Path, part: str = "train", **options: Any) -> list[TokenOrigin]:
    """Return the origin of each token of the second document, EOS left out."""
    runs = trace_tokens(export, part=part, start=0, stop=10**6, **options)
    at = [n for of in runs for n in range(of.position, of.position + of.num_tokens) if of.row == 1]
    found = [trace_tokens(export, part=part, start=n, stop=n + 1, **options)[0] for n in at]
    return [of for of in found if not of.added]


def spans(export: Path, **options: Any) -> list[tuple[int | None, int | None]]:
    return [(of.char_start, of.char_stop) for of in origins(export, **options)]


@pytest.mark.parametrize(
    ("tokenizer", "text", "expected"),
    [
        (byte_level(NFC), "e\u0301\u212bx", [(0, 2), (0, 2), (2, 3), (2, 3), (3, 4)]),
        (byte_level(NFKC), LIGATURE, [(0, 2), (0, 2), (2, 3), (3, 4), (3, 4), (4, 5)]),
        (byte_level(normalizers.Lowercase()), "İX", [(0, 1), (0, 1), (0, 1), (1, 2)]),
        (byte_level(NFC), "\u1100\u1161b", [(0, 2), (0, 2), (0, 2), (2, 3)]),
        (byte_level(CONTROL), "a\u0007\u0007b", [(0, 1), (3, 4)]),
        (word_piece(), " Wörte\u0301  a", [(1, 5), (5, 7), (9, 10)]),
    ],
    ids=["NFC", "NFKC", "Lowercase", "Hangul", "deleted", "WordPiece"],
)
def test_tokens_of_a_normalised_text_lead_to_its_raw_characters(
    tokenizer: str, text: str, expected: list[tuple[int, int]], tmp_path: Path
):
    build(declared(tmp_path, text, tokenizer))

    found = origins(tmp_path / EXPORT)

    assert [(of.char_start, of.char_stop) for of in found] == expected
    assert [of.text for of in found] == [text[start:stop] for start, stop in expected]
    assert not any(of.is_normalised for of in found)


def test_sentencepiece_leads_to_the_characters_that_it_normalised(tmp_path: Path):
    model = special.train_model(normalization_rule_name="nfkc_cf", add_dummy_prefix=False)
    (tmp_path / "own.model").write_bytes(model)
    build(declared(tmp_path, "ﬁX é", {"kind": "sentencepiece", "name": "own.model"}))

    assert spans(tmp_path / EXPORT) == [(0, 1), (0, 1), (1, 2), (2, 3), (3, 4), (3, 4)]


def test_a_chat_leads_to_the_characters_of_its_rendered_text(tmp_path: Path):
    content = json.loads(save_chat_tokenizer(tmp_path).joinpath("tokenizer.json").read_text())
    content["normalizer"] = {"type": "NFC"}
    dataset = chat_dataset(
        tmp_path, [chat("a", "b"), chat("e\u0301 <|im_end|>", "yes")], exports=["npy"]
    )
    save_chat_tokenizer(tmp_path, content=json.dumps(content))
    build(dataset)

    found = origins(tmp_path / "store/chats/exports/npy")
    texts = [f"{of.text}" for of in found]

    assert texts[0] == "<|im_start|>"
    at = texts.index("\n") + 1
    assert texts[at : at + 5] == ["e\u0301", "e\u0301", " ", "<", "|"]


def test_a_span_of_a_document_leads_to_its_characters_in_the_document(tmp_path: Path):
    split = {"boundary": "character", "parts": {"train": {"characters": 8}, "rest": {"start": 8}}}
    build(declared(tmp_path, "abce\u0301e\u0301x", byte_level(NFC), split=split))

    assert spans(tmp_path / EXPORT, part="rest") == [(3, 5), (3, 5), (5, 7), (5, 7), (7, 8)]


@pytest.mark.parametrize("change", ["gone", "another"])
def test_without_the_raw_text_it_is_said_that_characters_are_of_the_normalised(
    change: str, tmp_path: Path
):
    build(declared(tmp_path, "e\u0301e\u0301 x", byte_level(NFC)))
    path = tmp_path / "raw/a.jsonl"
    path.unlink() if change == "gone" else write_raw(tmp_path, {"a.jsonl": ["first", "é"]})

    *_, last = origins(tmp_path / EXPORT)
    printed = run("trace", tmp_path / EXPORT, "--token", str(last.position)).stdout

    assert (last.char_start, last.char_stop, last.is_normalised) == (3, 4, True)
    assert "note: the tokenizer normalised a text, and its raw file cannot be read" in printed


def test_a_text_that_the_tokenizer_leaves_as_it_is_needs_no_raw_file(tmp_path: Path):
    build(declared(tmp_path, "é x", byte_level(NFC)))
    (tmp_path / "raw/a.jsonl").unlink()

    *_, last = origins(tmp_path / EXPORT)

    assert (last.char_start, last.char_stop, last.is_normalised) == (2, 3, False)

from pathlib import Path

import pytest
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models, pre_tokenizers

from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.vocabulary import token_bytes
from tokflow_tests import special
from tokflow_tests.tiny import declare_texts, save_tokenizer, tokenize

TEXTS = ["a word in a text", " größe  漢字", "between\n👍🏽 and <word> </s>"]


@pytest.mark.parametrize(
    "make", [special.of_bytes, special.of_tiktoken, special.of_tokenizers, special.of_sentencepiece]
)
def test_the_bytes_of_a_document_s_tokens_are_its_text(make: special.Make, tmp_path: Path):
    dataset = declare_texts(tmp_path, TEXTS, **make(tmp_path))
    tokenizer = save_tokenizer(dataset)
    shard = tokenize(dataset)

    found = token_bytes(tokenizer)

    assert found is not None
    assert len(found) == tokenizer.vocab_size
    eos = found[tokenizer.eos_id].decode()
    texts = b"".join(found[id_] for id_ in shard.tokens().read().tolist()).decode().split(eos)
    of_words = make is special.of_sentencepiece  # a space stands before each of its texts
    ends = [*texts[:2], eos.join(texts[2:-1])]
    assert [text.removeprefix(" " * of_words) for text in ends] == TEXTS


def test_of_a_model_with_spaces_that_are_spelt_the_bytes_are_what_it_decodes(tmp_path: Path):
    vocab = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3, **{f"<0x{i:02X}>": 4 + i for i in range(256)}}
    model = models.BPE(vocab, [("▁", "a")], byte_fallback=True, unk_token="<unk>")
    tokenizer = HfTokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(tmp_path / "own.json"))
    own = {"kind": "file", "name": "own.json", "eos_token": "</s>"}
    saved = save_tokenizer(declare_texts(tmp_path, TEXTS, **own))

    found = token_bytes(saved)

    ids = [3, 1, 2, 4 + 0xC3, 4 + 0xA9]
    assert found is not None
    assert b"".join(found[id_] for id_ in ids).decode() == " a aé"
    assert open_reference(saved).decode(ids) == " a aé"


def test_tokens_that_are_no_pieces_of_a_text_have_no_bytes(tmp_path: Path):
    words = HfTokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece()
    words.add_special_tokens(["</s>"])
    words.save(str(tmp_path / "own.json"))
    own = {"kind": "file", "name": "own.json", "eos_token": "</s>"}

    assert token_bytes(save_tokenizer(declare_texts(tmp_path, TEXTS, **own))) is None


def test_a_tokenizer_that_is_code_is_not_run(tmp_path: Path):
    own = special.of_transformers(tmp_path)

    assert token_bytes(save_tokenizer(declare_texts(tmp_path, TEXTS, **own))) is None

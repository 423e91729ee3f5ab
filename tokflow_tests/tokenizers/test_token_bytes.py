import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models, pre_tokenizers

from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import make_output
from tokflow.store.tables import to_texts
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokenizers.vocabulary import control_tokens, id_of_unknown, token_bytes
from tokflow.tokens.chat import ChatEncoder
from tokflow_tests import special
from tokflow_tests.chats import END, START, byte_level_json, chat_dataset, save_chat_tokenizer
from tokflow_tests.special import train_model
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
    code = special.of_transformers(tmp_path)  # which is not run
    for own in ({"kind": "file", "name": "own.json", "eos_token": "</s>"}, code):
        assert token_bytes(save_tokenizer(declare_texts(tmp_path, TEXTS, **own))) is None


def saved(folder: Path, content: str | None = None, **tokenizer: Any) -> Tokenizer:
    dataset = chat_dataset(folder, None, tokenizer=tokenizer)
    if content is not None:
        save_chat_tokenizer(folder, content=content)
    graph = graph_of(dataset)
    make_output(graph, "tokenizer", "tokenizer")
    return graph.tokenizer


def test_an_eos_counts_where_it_was_added_and_not_where_it_is_a_word(tmp_path: Path):
    special = {START: 0, END: 1, "<|bos|>": 2}
    fields = json.loads(byte_level_json())
    fields["added_tokens"].append(
        {**fields["added_tokens"][0], "id": 310, "content": "<end>", "special": False}
    )
    added = saved(tmp_path / "a", json.dumps(fields), eos_token="<end>")

    assert control_tokens(added) == {**special, "<end>": 310}
    assert control_tokens(saved(tmp_path / "b", eos_token=".")) == special


def test_an_added_token_has_the_id_that_its_library_gives_whatever_the_file_says(tmp_path: Path):
    fields = json.loads(byte_level_json())
    fields["added_tokens"].append({**fields["added_tokens"][0], "id": 400, "content": "<end>"})

    tokenizer = saved(tmp_path, json.dumps(fields), eos_token="<end>")

    [encoded] = open_reference(tokenizer, in_text="control").encode(to_texts(["<end>"])).documents()
    assert encoded.tolist() == [tokenizer.eos_id] == [310]
    assert tokenizer.vocab_size == 311


def test_the_unknown_token_is_found_in_each_kind_of_model(tmp_path: Path):
    unigram = tokenizers.Tokenizer(models.Unigram([("a", -1.0), ("<unk>", 0.0)], 1))
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    own = tmp_path / "d"
    own.mkdir()
    (own / "own.model").write_bytes(train_model(control_symbols=[START, END]))
    for library in (unigram, words):
        library.add_special_tokens(["<unk>", START, END])

    assert id_of_unknown(saved(tmp_path / "a", unigram.to_str())) == 1
    assert id_of_unknown(saved(tmp_path / "b", words.to_str())) == 1
    assert id_of_unknown(saved(tmp_path / "c")) is None
    assert id_of_unknown(saved(own, kind="sentencepiece", name="own.model")) == 0


def test_an_unknown_token_that_is_eos_too_is_not_left_out(tmp_path: Path):
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0, END: 1}, unk_token=END))
    words.add_special_tokens([END])

    tokenizer = saved(tmp_path, words.to_str())
    chats = ChatEncoder(open_reference(tokenizer), tokenizer, "ordinary", None)

    assert chats._name_of == {1: END}

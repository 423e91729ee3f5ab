"""What a text can spell that becomes a control token, by kind of tokenizer."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models

from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.run import make_output
from tokflow.store.tables import to_texts
from tokflow.tokenizers.engines.reference import open_reference
from tokflow.tokenizers.tokenizer import Tokenizer
from tokflow.tokenizers.vocabulary import control_tokens, id_of_unknown
from tokflow.tokens.chat import ChatEncoder
from tokflow_tests.chats import END, START, byte_level_json, chat_dataset, save_chat_tokenizer
from tokflow_tests.special import train_model


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

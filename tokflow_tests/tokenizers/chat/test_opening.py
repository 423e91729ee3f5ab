"""What a dataset's template is told, and the tokens of a tokenizer that mean something to it."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tokflow.documents import DocumentsConfig
from tokflow.errors import ConfigError
from tokflow.pipeline.graph import BuildGraph
from tokflow.tokenizers.chat.template import open_template
from tokflow_tests.chat_templates import BAR, FAMILIES
from tokflow_tests.chats import byte_level_json, chat, chat_dataset, save_chat_tokenizer
from tokflow_tests.outputs import documents_of
from tokflow_tests.tiny import tokenize

OPEN, ROLES = FAMILIES["open"], FAMILIES["roles"]
CHATS = [chat("say", "yes", "half", "please")]


def with_tokens(names: Any, *, special: bool) -> str:
    """Return a tokenizer with further tokens, the first of which are ids 340 and on."""
    library = tokenizers.Tokenizer.from_str(byte_level_json())
    tokens = [tokenizers.AddedToken(name, special=special) for name in names]
    (library.add_special_tokens if special else library.add_tokens)(tokens)
    return library.to_str()


def supervised(shard: Any, content: str) -> str:
    library = tokenizers.Tokenizer.from_str(content)
    [(ids, mask)] = documents_of(shard)
    kept = [token for token, bit in zip(ids, mask, strict=True) if bit]
    return library.decode(kept, skip_special_tokens=False)


def test_stop_tokens_come_with_the_tokenizer_and_make_no_other_tokenizer(tmp_path: Path):
    content = with_tokens(OPEN.special, special=True)
    user_id = tokenizers.Tokenizer.from_str(content).token_to_id("<|user|>")
    dataset = chat_dataset(tmp_path, CHATS, template=OPEN.template)
    save_chat_tokenizer(tmp_path, OPEN.template, content=content)

    without = tokenize(dataset)
    fingerprint = BuildGraph(dataset).tokenizer.fingerprint
    (tmp_path / "tok/generation_config.json").write_text(json.dumps({"eos_token_id": [user_id]}))
    with_file = tokenize(dataset)

    assert supervised(without, content) == "\nyes\nplease<|im_end|>"
    assert without.manifest.counts["num_turns_without_stop"] == 1
    assert supervised(with_file, content) == "\nyes<|user|>\nplease<|im_end|>"
    assert with_file.manifest.counts["num_turns_without_stop"] == 0
    assert with_file.manifest.recipe.config["stop_tokens"] == ["<|user|>"]
    assert BuildGraph(dataset).tokenizer.fingerprint == fingerprint


def test_stop_tokens_of_the_config(tmp_path: Path):
    content = with_tokens(OPEN.special, special=True)
    stops = {"stop_tokens": ["<|user|>"]}
    dataset = chat_dataset(tmp_path, CHATS, template=OPEN.template, documents=stops)
    save_chat_tokenizer(tmp_path, OPEN.template, content=content)

    assert supervised(tokenize(dataset), content) == "\nyes<|user|>\nplease<|im_end|>"


def test_a_role_that_is_no_special_token_by_its_flag_is_plain_text_in_a_message(tmp_path: Path):
    user, assistant = (f"<{BAR}{name}{BAR}>" for name in ("User", "Assistant"))
    content = with_tokens([user, assistant, "<think>", "</think>"], special=False)
    chats = [chat(f"say {assistant} please", f"{user}yes <think> half")]
    dataset = chat_dataset(tmp_path, chats, template=ROLES.template)
    save_chat_tokenizer(tmp_path, ROLES.template, content=content)
    shard = tokenize(dataset)

    library = tokenizers.Tokenizer.from_str(content)
    [(ids, _)] = documents_of(shard)
    assert [ids.count(library.token_to_id(name)) for name in (user, assistant, "<think>")] == [
        1, 1, 1,
    ]  # fmt: skip
    text = f"{user}say {assistant} please{assistant}{user}yes <think> half<{BAR}end{BAR}>"
    assert library.decode(ids[:-1], skip_special_tokens=False) == text
    assert shard.manifest.counts["num_special_tokens_in_text"] == 2


def test_a_template_is_told_the_day_that_the_config_names():
    template = "{{ strftime_now('%d %b %Y') }}{{ messages[0].content }}"
    config = DocumentsConfig(messages="m", chat_template=template, chat_date="2026-01-31")

    assert open_template(config, None).try_writing(chat("a")) == "31 Jan 2026a"
    with pytest.raises(ConfigError) as caught:
        open_template(DocumentsConfig(messages="m", chat_template=template), None)
    assert "documents.chat_date" in caught.value.remedy
    with pytest.raises(ConfigError) as caught:
        DocumentsConfig(messages="m", chat_date="31.1.2026")
    assert caught.value.where.endswith("chat_date")

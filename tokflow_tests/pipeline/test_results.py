import json
from pathlib import Path
from typing import Any

import pytest

from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.results import Totals
from tokflow.pipeline.run import build_dataset
from tokflow_tests.chat_templates import FAMILIES
from tokflow_tests.chats import MARKED, PLAIN, chat, chat_dataset
from tokflow_tests.outputs import new_in
from tokflow_tests.special import of_tokenizers
from tokflow_tests.tiny import build, declare, tokenize


def notices(folder: Path, texts: list[str], **fields: Any) -> dict[str, str]:
    """Build a dataset of these texts; return its notices, which its next plan has, too."""
    dataset = declare(folder, {"a.jsonl": texts}, **fields)
    built = build(dataset).notices
    assert make_plan(dataset).totals.notices() == built
    return {notice.name: notice.text for notice in built}


def test_special_tokens_that_became_plain_text_are_told_with_the_option(tmp_path: Path):
    tokenizer = of_tokenizers(tmp_path)
    control = {**tokenizer, "special_tokens_in_text": "control"}

    said = notices(tmp_path / "ordinary", ["a </s> b", "</s>", "none"], tokenizer=tokenizer)

    assert said["special_tokens_in_text"] == (
        "encoded as plain text: 2 special tokens that the documents contain; "
        "tokenizer.special_tokens_in_text: control makes control tokens of them"
    )
    assert notices(tmp_path / "control", ["a </s> b"], tokenizer=control) == {}


def test_rows_that_are_shorter_than_8_tokens_on_average_are_told(tmp_path: Path):
    fields: dict[str, Any] = {"packing": {"strategy": "one_document", "sequence_length": 64}}
    fields["exports"] = ["jsonl", "bin"]

    said = notices(tmp_path / "short", ["123456", "1234567"], **fields)

    assert said == {"short_rows": "short rows: 7.5 tokens on average in jsonl"}
    assert notices(tmp_path / "long", ["123456", "12345678"], **fields) == {}


def test_files_in_which_the_separator_is_nowhere_are_told(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    for name, text in {"a": "x\r\n\r\ny", "b": "x\n\n", "c": "x\ny", "d": "", "e": "z"}.items():
        (tmp_path / f"raw/{name}.txt").write_bytes(text.encode())
    documents = {"document_per": "separator", "separator": "\n\n"}

    [said] = build(declare(tmp_path, raw={"files": "raw/*"}, documents=documents)).notices

    assert said.text == "one document each: 2 files without documents.separator"


TWO_TURNS = chat("a", "b", "c", "d")
THOUGHT = [TWO_TURNS[0], {**TWO_TURNS[1], "reasoning_content": "hm"}, *TWO_TURNS[2:]]
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
OF_TEMPLATES = {
    "stop_tokens": (
        FAMILIES["open"].template,
        TWO_TURNS,
        "no stop token: after 1 of 2 turns of the assistant; name those that end one in "
        "documents.stop_tokens",
    ),
    "other_blocks": (
        MARKED.replace("+ eos_token }}{% endgeneration %}", "}}{% endgeneration %}{{ eos_token }}")
        + PROMPT,
        TWO_TURNS,
        "the template's {% generation %} blocks are what is supervised, and differ from what the "
        "model has to emit, in the first chats: they leave out some of it, such as a stop token "
        "(1)",
    ),
    "unwritten": (
        PLAIN.replace("message['content'] +", "(message['content'] if loop.last else '') +"),
        TWO_TURNS,
        "left out: words of 3 messages that the chat template does not write",
    ),
    "dropped_reasoning": (
        FAMILIES["reasoning"].template,
        THOUGHT,
        "not written by the chat template: reasoning of 1 message",
    ),
}
"""A template, a chat, and the notice of what the one does to the other."""


@pytest.mark.parametrize("name", OF_TEMPLATES)
def test_what_a_chat_template_does_is_told(name: str, tmp_path: Path):
    template, messages, line = OF_TEMPLATES[name]
    keep = {"unwritten": "keep"}
    shard = tokenize(chat_dataset(tmp_path, [messages], template=template, documents=keep))

    told = {of.name: of for of in Totals().add(shard.manifest, "").notices()}

    assert told[name].text == line
    assert told[name].is_loss == (name == "unwritten")


def test_tokens_from_a_prompt_into_its_completion_are_told(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text(json.dumps({"p": "Hello ", "c": "there"}) + "\n")
    documents = {"messages": None, "prompt": "p", "completion": "c"}
    shard = tokenize(chat_dataset(tmp_path, None, documents=documents))

    [_, told] = Totals().add(shard.manifest, "").notices()

    assert told.text.startswith("boundary tokens: 1 token, not supervised, from a prompt into")


ROLES = [[{"role": "human", "content": "hi"}, {"role": "gpt", "content": "hello"}]] * 2
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"


def chats(folder: Path, **documents: Any) -> Dataset:
    documents = {"chat_template": TEMPLATE, **documents}
    return chat_dataset(folder, ROLES, documents=documents, exports=["bin", "parquet"])


def test_no_export_is_made_of_chats_of_which_no_token_is_supervised(tmp_path: Path):
    built = build_dataset(chats(tmp_path))

    assert [(failed.stage, failed.name) for failed in built.failed] == [
        ("export", "bin"),
        ("export", "parquet"),
    ]
    assert (built.failed[0].error.where, built.failed[0].error.found) == (
        "chats: documents.messages",
        "none of 40 tokens, in messages of the roles 'human', 'gpt'",
    )
    said = {notice.name: notice.text for notice in built.notices}
    assert said["supervised_tokens"] == "supervised: 0 of 40 tokens (0.0 %)"
    assert said["documents_without_loss"] == (
        "nothing to learn: 2 documents without a supervised token"
    )


def test_the_error_names_the_field_of_chats_of_which_the_assistant_has_no_words(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text('{"instruction": "a", "output": ""}\n')
    template = "{% for m in messages if m.content %}{{ m.content }};{% endfor %}"
    documents = {"messages": None, "chat_format": "alpaca", "chat_template": template}
    dataset = chat_dataset(
        tmp_path, None, documents=documents, tokenizer={"eos": "none"}, exports=["npy"]
    )

    [failed] = build_dataset(dataset).failed

    assert str(failed.error).startswith("chats: documents.chat_format: ")


def test_it_is_made_where_that_is_accepted_and_nothing_else_again(tmp_path: Path):
    build_dataset(chats(tmp_path))

    built = build(chats(tmp_path, on_no_loss="accept"))

    new = new_in(built)
    assert new == [("export", "bin"), ("export", "parquet")]


def test_completions_that_are_all_empty_and_have_no_eos_are_no_training_data(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text(json.dumps({"prompt": "abc", "completion": ""}))
    documents = {"prompt": "prompt", "completion": "completion"}
    tokenizer = {"kind": "bytes", "eos": "none"}

    [failed] = build_dataset(
        declare(tmp_path, documents=documents, tokenizer=tokenizer, exports=["npy"])
    ).failed

    assert (failed.error.where, failed.error.found) == (
        "tiny: documents.completion",
        "none of 3 tokens",
    )

"""What is no chat, and templates that cannot be used."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tokflow.documents import DocumentsConfig, Reject
from tokflow.errors import BadDocumentError, ConfigError
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.graph import BuildGraph
from tokflow.pipeline.mixture import graph_of
from tokflow.tokenizers.chat.renderer import open_renderer
from tokflow.tokenizers.chat.template import open_template
from tokflow_tests.chat_templates import BAR, FAMILIES
from tokflow_tests.chats import (
    CHATS,
    END,
    MARKED,
    PLAIN,
    START,
    byte_level_json,
    chat,
    chat_dataset,
    save_chat_tokenizer,
    write_chats,
)
from tokflow_tests.outputs import documents_of
from tokflow_tests.reading import read_documents
from tokflow_tests.tiny import tokenize

BAD_CHATS = [
    ([], "a list of one message or more in 'messages', found []"),
    ("not JSON", "the JSON of a list of messages in 'messages', found 'not JSON'"),
    ({"role": "user"}, "a list of one message or more in 'messages', found {'role': 'user'}"),
    ([{"content": "a"}], "an object with a `role` as message 0, found {'content': 'a'}"),
    (None, "a list of one message or more in 'messages', found None"),
    ([{"role": "user"}], "messages that the chat template takes, found UndefinedError"),
    (chat("\ud800"), "text, found the lone surrogate '\\ud800' in a message"),
    (json.dumps(chat("\ud800")), "text, found the lone surrogate '\\ud800' in a message"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD_CHATS, ids=[reason for _, reason in BAD_CHATS])
def test_what_is_no_chat_is_a_bad_document_with_its_line(bad: Any, reason: str, tmp_path: Path):
    chats = [chat("a", "b"), bad, chat("c", "d")]
    path = write_chats(tmp_path / "chats.jsonl", chats)
    fields: dict[str, Any] = {"messages": "messages", "chat_template": PLAIN}
    rejects: list[Reject] = []

    config = DocumentsConfig(**fields)
    with pytest.raises(BadDocumentError) as caught:
        list(read_documents(path, config, render=open_renderer(config, None)))
    config = DocumentsConfig(**fields, on_bad_document="reject")
    [batch] = read_documents(
        path, config, render=open_renderer(config, None), on_reject=rejects.append
    )

    assert f"{path}, row 1, line 2, byte " in str(caught.value)
    assert re.sub(r"\s+", " ", reason) in str(caught.value)
    assert batch.rows.tolist() == [0, 2]
    assert [(reject.row, reject.line) for reject in rejects] == [(1, 2)]
    assert rejects[0].byte_offset == len(path.read_bytes().splitlines(keepends=True)[0])


def test_what_a_template_refuses_is_a_bad_document(tmp_path: Path):
    template = "{{ raise_exception('roles must alternate') if messages | length > 2 }}" + PLAIN
    dataset = chat_dataset(tmp_path, template=template, documents={"on_bad_document": "reject"})

    shard = tokenize(dataset)

    assert shard.manifest.counts["num_rejects"] == 2
    lines = (shard.folder / "rejects.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in lines] == [2, 4]
    assert "found TemplateError: roles must alternate" in json.loads(lines[0])["reason"]


LAST_ALONE = PLAIN.replace("message['content'] +", "(message['content'] if loop.last else '') +")


def test_words_that_a_template_leaves_out_make_a_bad_document_unless_they_may(tmp_path: Path):
    with pytest.raises(BadDocumentError) as caught:
        tokenize(chat_dataset(tmp_path, [chat("a"), chat("b", "c")], template=LAST_ALONE))
    kept = tokenize(
        chat_dataset(tmp_path, None, template=LAST_ALONE, documents={"unwritten": "keep"})
    )

    assert "row 1, line 2, byte" in caught.value.where
    assert "all of `content` of message 0, the user's" in caught.value.expected
    assert "set documents.unwritten: keep" in caught.value.remedy
    assert kept.manifest.counts["num_documents"] == 2
    assert kept.manifest.counts["num_unwritten"] == 1


def test_a_template_that_writes_words_twice_needs_generation_blocks(tmp_path: Path):
    chats = [chat("a", "b"), chat("a", "b", "c", "d")]
    again = "{% for m in messages %}{{ m.content }}{% endfor %}"
    twice, marked = PLAIN + again, MARKED + again + PLAIN[PLAIN.index("{% if add") :]

    with pytest.raises(BadDocumentError) as caught:
        tokenize(chat_dataset(tmp_path, chats, template=twice))

    assert caught.value.expected == ("a chat template that shows the words of message 1 together")
    assert "{% generation %} and {% endgeneration %} in the template" in caught.value.remedy
    shard = tokenize(chat_dataset(tmp_path, chats, template=marked))
    assert [sum(mask) for _, mask in documents_of(shard)] == [2, 4]  # a letter and a stop token


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for %}", "documents.chat_template: line 1: expected a Jinja template"),
        (None, "documents.chat_template: expected a chat template, for documents are chats"),
        ("{{ strftime_now('%d') }}", "expected a template that gives the same text each time"),
        ("{{ messages | random }}", "expected a template that gives the same text each time"),
    ],
)
def test_a_template_that_cannot_be_used_stops_the_run(
    template: str | None, message: str, tmp_path: Path
):
    with pytest.raises(ConfigError) as caught:
        tokenize(chat_dataset(tmp_path, template=template))

    assert message in str(caught.value)


def writing(text: str) -> str:
    """Return a template that writes this text for any chat."""
    return "{% generation %}" + text + "{% endgeneration %}"


BESIDE = "tok/chat_template.jinja"
NAMED: Any = [{"name": "rag", "template": "no"}, {"name": "default", "template": writing("yes")}]


def one_chat(folder: Path, files: dict[str, str], **fields: Any) -> Dataset:
    """Return a dataset of one chat, with files that are templates which write these texts."""
    (folder / "tok").mkdir(exist_ok=True)
    for path, text in files.items():
        (folder / path).write_text(writing(text))
    documents = {"unwritten": "keep", **fields.pop("documents", {})}
    return chat_dataset(folder, CHATS[:1], documents=documents, **fields)


@pytest.mark.parametrize(
    ("files", "fields", "written"),
    [
        ({"own.jinja": "own", BESIDE: "no"}, {"documents": {"chat_template": "own.jinja"}}, "own"),
        ({BESIDE: "file"}, {}, "file"),
        ({}, {}, "yes"),
        ({BESIDE: "beside"}, {"tokenizer": {"name": "tok/tokenizer.json"}}, "beside"),
    ],
    ids=["of the dataset", "a file before those named", "the default", "beside tokenizer.json"],
)
def test_where_a_template_comes_from(
    files: dict[str, str], fields: dict[str, Any], written: str, tmp_path: Path
):
    [(ids, mask)] = documents_of(tokenize(one_chat(tmp_path, files, template=NAMED, **fields)))

    assert tokenizers.Tokenizer.from_str(byte_level_json()).decode(ids) == written
    assert mask == [1] * len(ids)


def test_another_template_beside_a_tokenizer_is_another_output(tmp_path: Path):
    first, second = (
        graph_of(one_chat(tmp_path, {BESIDE: text}, template=None)).output("tokenizer").fingerprint
        for text in ("a", "b")
    )

    assert first != second


def test_the_text_of_a_template_file_is_what_decides_the_tokens(tmp_path: Path):
    write_chats(tmp_path / "raw/chats.jsonl", CHATS)

    def fingerprint(template: str) -> str:
        dataset = chat_dataset(tmp_path, None, documents={"chat_template": template})
        return tokenize(dataset).manifest.recipe.fingerprint

    path = tmp_path / "mine.jinja"
    path.write_text(PLAIN)
    assert fingerprint("mine.jinja") == fingerprint(PLAIN)
    path.write_text(MARKED)
    assert fingerprint("mine.jinja") != fingerprint(PLAIN)
    with pytest.raises(ConfigError, match=r"none\.jinja.*No such file"):
        chat_dataset(tmp_path, None, documents={"chat_template": "none.jinja"})


def test_a_trained_tokenizer_never_sees_control_tokens_and_needs_the_template(tmp_path: Path):
    fields: dict[str, Any] = {
        "tokenizer": {
            "kind": "trained", "name": None, "vocab_size": 300, "special_tokens": [END, START],
        },
        "documents": {"chat_template": PLAIN},
    }  # fmt: skip
    shard = tokenize(chat_dataset(tmp_path, CHATS * 5, **fields))

    graph = graph_of(chat_dataset(tmp_path, None, **fields))
    vocab = json.loads((graph.tokenizer.folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert not [token for token in vocab if "im_" in token or "<|" in token]
    assert "as" in "".join(vocab)
    end = graph.tokenizer.special_tokens[END]
    assert documents_of(shard)[0][0].count(end) == 2
    with pytest.raises(ConfigError, match="the tokenizer is trained on what it writes"):
        chat_dataset(tmp_path, None, tokenizer=fields["tokenizer"])


def test_chats_are_never_cut_at_a_character(tmp_path: Path):
    split = {"parts": {"train": {"start": 0, "characters": 5}}, "boundary": "character"}

    with pytest.raises(ConfigError) as caught:
        chat_dataset(tmp_path, split=split)

    assert caught.value.where == "test: split.boundary"


OPEN, ROLES = FAMILIES["open"], FAMILIES["roles"]
SPOKEN = [chat("say", "yes", "half", "please")]


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
    dataset = chat_dataset(tmp_path, SPOKEN, template=OPEN.template)
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
    (tmp_path / "tok/generation_config.json").unlink()
    by_config = chat_dataset(tmp_path, None, documents={"stop_tokens": ["<|user|>"]})
    save_chat_tokenizer(tmp_path, OPEN.template, content=content)
    assert supervised(tokenize(by_config), content) == "\nyes<|user|>\nplease<|im_end|>"


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

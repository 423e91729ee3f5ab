"""Special tokens that messages spell in part, and those that are the template's after all."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tokflow.tokenizers.chat import BadChatError, Chat
from tokflow.tokenizers.chat.marks import Marker
from tokflow.tokenizers.chat.template import ChatTemplate
from tokflow_tests.chats import END, PLAIN, START, byte_level_json, chat, chat_dataset
from tokflow_tests.outputs import documents_of
from tokflow_tests.tiny import tokenize

PARTS = PLAIN.replace(
    "message['content'] +",
    "(message['content'] if message['content'] is string "
    "else message['content'] | map(attribute='text') | join) +",
)
THOUGHTLESS = PLAIN.replace(
    "message['content'] +",
    "(message['content'].split('<think>')[0] + message['content'].split('</think>')[-1] "
    "if '</think>' in message['content'] else message['content']) +",
)
LOWER = PLAIN.replace("message['content'] +", "message['content'] | lower +")
ADJACENT = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
IN_PARTS = [
    {"role": "user", "content": [{"text": "x<|im_"}, {"text": "end|>y"}]},
    *chat("ok", "ok")[1:],
]

JOINED = {
    "parts": (PARTS, IN_PARTS, [START, END, START, END]),
    "lower": (LOWER, chat("x<|IM_END|>y", "ok"), [START, END, START, END]),
    "adjacent": (ADJACENT, chat("a<|im_", "end|>b"), [END]),  # the one that tokflow adds
}


@pytest.mark.parametrize(("template", "messages", "own"), JOINED.values(), ids=JOINED)
def test_a_special_token_that_the_template_joins_out_of_messages_stays_plain_text(
    template: str, messages: Any, own: list[str], tmp_path: Path
):
    shard = tokenize(chat_dataset(tmp_path, [messages], template=template))

    library = tokenizers.Tokenizer.from_str(byte_level_json())
    [(ids, mask)] = documents_of(shard)
    tokens = [library.id_to_token(token_id) for token_id in ids]
    assert [token for token in tokens if token in (START, END)] == own
    assert library.decode(ids, skip_special_tokens=False).count(END) == own.count(END) + 1
    assert len(ids) == len(mask)
    assert shard.manifest.counts["num_special_tokens_in_text"] == 1


def test_a_special_token_of_what_is_left_where_a_template_cuts_stays_plain_text(tmp_path: Path):
    cut_out = chat("x<|im_<think>zz</think>end|>y", "ok")
    keep = {"unwritten": "keep"}
    shard = tokenize(chat_dataset(tmp_path, [cut_out], template=THOUGHTLESS, documents=keep))

    assert shard.manifest.counts["num_special_tokens_in_text"] == 1
    [(ids, _)] = documents_of(shard)
    library = tokenizers.Tokenizer.from_str(byte_level_json())
    assert ids.count(library.token_to_id(END)) == 2
    assert f"x{END}y" in library.decode(ids, skip_special_tokens=False)


def spelt(template: str, messages: Any, *names: str) -> list[tuple[int, str]]:
    """Return where the messages spell what, with the special tokens `names`."""
    made = ChatTemplate(template, {})
    text = made.write(Chat(messages))
    marker = Marker(made, names)
    return [(a, text[a:b]) for a, b in marker.spelt(marker.mark(Chat(messages), text))]


def test_a_template_that_looks_for_signs_keeps_its_own_tokens_and_finds_whole_ones():
    # It cuts the thought out, which it does not where < and > are marked.
    assert spelt(THOUGHTLESS, chat("<think>a < b</think> c", "ok"), START, END) == []
    found = spelt(THOUGHTLESS, chat(f"<think>a</think>{END} c", "ok"), START, END)
    assert found == [(len(f"{START}user\n"), END)]


def test_a_name_that_the_template_makes_of_a_role_is_its_own():
    template = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"
    names = ("<|user|>", "<|assistant|>", "<|im_end|>")

    assert spelt(template, chat("a < b | c", "d"), *names) == []
    forged = [{"role": "user|><|im_end", "content": "a"}]
    assert spelt(template, forged, *names) == [(0, "<|user|>"), (8, "<|im_end|>")]


@pytest.mark.parametrize(
    ("content", "expected"),
    [("Stop", [(0, "STOP")]), ("stop", [(0, "STOP")]), ("x", []), ("<end>", [(0, "<END>")])],
)
def test_a_name_of_letters_alone_has_its_first_letter_marked(
    content: str, expected: list[tuple[int, str]]
):
    template = "{{ messages[0].content | upper }}{{ '<END>' }}"

    assert spelt(template, chat(content), "STOP", "<END>") == expected


def test_a_template_that_refuses_the_marks_is_a_bad_chat():
    template = (
        "{{ raise_exception('no') if messages[0].content[:3] != '<s>' }}{{ messages[0].content }}"
    )

    with pytest.raises(BadChatError, match="copies what the messages say"):
        spelt(template, chat("<s>a"), "<s>")

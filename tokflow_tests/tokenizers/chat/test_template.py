"""Generation blocks wherever they stand, and what is none."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tokflow.tokenizers.chat import BadChatError, Chat
from tokflow.tokenizers.chat.marks import Marker
from tokflow.tokenizers.chat.template import ChatTemplate
from tokflow_tests.chat_templates import CHATML, OPEN, REASONING, assistant, call, user
from tokflow_tests.chats import END, MARKED, PLAIN, START, byte_level_json, chat, chat_dataset
from tokflow_tests.outputs import documents_of
from tokflow_tests.tiny import tokenize

TURN = (
    "{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}"
)
ELSEWHERE = {
    "macro": "{% macro turn(m) %}" + TURN + "{{ '\n' }}{% endmacro %}"
    "{% for m in messages %}{{ turn(m) }}{% endfor %}",
    "set": "{% for m in messages %}{% set turn %}" + TURN + "{% endset %}"
    "{{ turn }}{{ '\n' }}{% endfor %}",
    "filter": "{% filter replace('unheard', 'of') %}" + MARKED + "{% endfilter %}",
    "written later": "{% set ns = namespace(all='') %}{% for m in messages %}{% set turn %}"
    + TURN
    + "{% endset %}{% set ns.all = ns.all + turn + '\n' %}{% endfor %}{{ ns.all }}",
}


@pytest.mark.parametrize("template", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_generation_block_that_is_written_later_is_supervised_where_it_is_written(
    template: str, tmp_path: Path
):
    assert documents_of(tokenize(chat_dataset(tmp_path, template=template))) == documents_of(
        tokenize(chat_dataset(tmp_path / "plain", template=MARKED))
    )


def supervised(template: str, messages: Any = None, **names: str) -> list[str]:
    made, given = ChatTemplate(template, names), Chat(messages or chat("ab", "cd"))
    text = made.write(given)
    return [text[a:b] for a, b in Marker(made, []).mark(given, text).taken.blocks]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("a\n  {%- generation -%}  \n b {%- endgeneration %}\nc\n\n", ["b"]),
        ("a\r\n  {% generation %}\r\n b\r\n  {% endgeneration %}\r\nc", [" b\n"]),
        ("x {%+ generation %} b {%+ endgeneration +%}\nc", [" b "]),
        ("{% generation %}{% endgeneration %}x{% generation %}y{% endgeneration %}", ["", "y"]),
        ("{% set generation = 'no' %}{% generation %}{{ generation }}{% endgeneration %}", ["no"]),
        ("{% raw %}{% generation %}{% endraw %}-{% generation %}b{% endgeneration %}", ["b"]),
        ("{{ '{% generation %}' }}-{% generation %}b{% endgeneration %}", ["b"]),
        ("{# {% generation %} #}-{% generation %}b{% endgeneration %}", ["b"]),
    ],
)
def test_white_space_and_other_uses_of_the_word_change_no_block(template: str, expected: list[str]):
    assert supervised(template) == expected


def test_messages_may_hold_the_marks():
    marks = "\U000f0000\U000f0001\U000f0002"

    assert supervised(MARKED, chat(marks, marks[::-1]), eos_token="!") == [marks[::-1] + "!"]


@pytest.mark.parametrize(
    "template",
    [
        "{% set a %}{% generation %} b {% endgeneration %}{% endset %}{{ a | trim }}",
        "{% set a %}{% generation %}b{% endgeneration %}{% endset %}{{ a | length }}",
        "{% set a %}{% generation %}b{% endgeneration %}{% endset %}{{ a[:-1] }}",
        "{% generation %}a{% generation %}b{% endgeneration %}c{% endgeneration %}",
    ],
)
def test_a_block_that_the_template_goes_on_to_change_is_a_bad_chat(template: str):
    with pytest.raises(BadChatError, match="one that changes, cuts or measures"):
        supervised(template)


def test_generation_blocks_are_supervised_whatever_the_role_is_called(tmp_path: Path):
    chats = [[{"role": "human", "content": "a", "lang": "en"}, {"role": "gpt", "content": "b"}]]
    template = MARKED.replace("== 'assistant'", "== 'gpt'")

    shard = tokenize(chat_dataset(tmp_path, chats, template=template))

    [(_, mask)] = documents_of(shard)
    assert sum(mask) == 2
    assert shard.manifest.counts["num_dropped_reasoning"] == 0


PARTS = CHATML.replace("m.content +", "(m.content | map(attribute='text') | join) +")
TEXT_CALLS = CHATML.replace(
    "m.content +", "m.content + (m.tool_calls[0].function.arguments + '' if m.tool_calls else '') +"
)
IN_PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def fitted(template: str, *messages: Any) -> list[Any]:
    return list(ChatTemplate(template, {}).fitted(Chat(messages)).messages)


def test_parts_of_text_are_joined_where_a_template_takes_strings():
    [joined] = fitted(CHATML, user(IN_PARTS))
    [kept] = fitted(PARTS, user(IN_PARTS))

    assert joined == user("ab")
    assert kept == user(IN_PARTS)


@pytest.mark.parametrize("kind", ["image", "image_url", "input_audio", "video"])
def test_content_that_is_no_text_is_refused_by_name(kind: str):
    with pytest.raises(BadChatError) as caught:
        fitted(PARTS, user("a"), user([*IN_PARTS, {"type": kind, "url": "x"}]))

    assert caught.value.problem.expected == "text as content of message 1"
    assert repr(kind) in caught.value.problem.found


def test_arguments_are_given_in_the_form_that_a_template_takes():
    as_object, as_text = call(city="x"), call(city="x")
    as_text["function"]["arguments"] = json.dumps(as_object["function"]["arguments"])

    def calls(template: str, given: Any) -> Any:
        return fitted(template, user("u"), assistant("", tool_calls=[given]))[1]["tool_calls"]

    assert calls(OPEN, as_text) == [as_object]
    assert calls(TEXT_CALLS, as_object) == [as_text]
    assert calls(REASONING, as_text) == [as_text]
    assert calls(REASONING, as_object) == [as_object]


TESTS_NULL = (
    "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls[0].function.arguments.x }}"
    "{{ m.tool_calls[0].function.arguments.city }}{% else %}{{ m.content + '' }}{% endif %}"
    "{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "content"),
    [(OPEN, {"content": ""}), (TESTS_NULL, {"content": None}), (REASONING, {})],
    ids=["empty", "null", "none"],
)
def test_calls_without_content_are_given_the_one_with_which_a_template_writes_them(
    template: str, content: dict[str, Any]
):
    said = {"role": "assistant", "tool_calls": [call(city="x")]}

    assert fitted(template, user("u"), said)[1] == {**said, **content}


JOINS_PARTS = PLAIN.replace(
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
CUT_IN_PARTS = [
    {"role": "user", "content": [{"text": "x<|im_"}, {"text": "end|>y"}]},
    *chat("ok", "ok")[1:],
]

JOINED = {
    "parts": (JOINS_PARTS, CUT_IN_PARTS, [START, END, START, END]),
    "lower": (LOWER, chat("x<|IM_END|>y", "ok"), [START, END, START, END]),
    "cut": (THOUGHTLESS, chat("x<|im_<think>zz</think>end|>y", "ok"), [START, END, START, END]),
    "adjacent": (ADJACENT, chat("a<|im_", "end|>b"), [END]),  # the one that tokflow adds
}


@pytest.mark.parametrize(("template", "messages", "own"), JOINED.values(), ids=JOINED)
def test_a_special_token_that_the_template_joins_out_of_messages_stays_plain_text(
    template: str, messages: Any, own: list[str], tmp_path: Path
):
    keep = {"unwritten": "keep"}
    shard = tokenize(chat_dataset(tmp_path, [messages], template=template, documents=keep))

    library = tokenizers.Tokenizer.from_str(byte_level_json())
    [(ids, mask)] = documents_of(shard)
    tokens = [library.id_to_token(token_id) for token_id in ids]
    assert [token for token in tokens if token in (START, END)] == own
    assert library.decode(ids, skip_special_tokens=False).count(END) == own.count(END) + 1
    assert len(ids) == len(mask)
    assert shard.manifest.counts["num_special_tokens_in_text"] == 1


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

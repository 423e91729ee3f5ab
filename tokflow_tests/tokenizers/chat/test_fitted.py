"""Content and arguments in the form that a template takes, and what is no text."""

import json
from typing import Any

import pytest

from tokflow.tokenizers.chat import BadChatError, Chat
from tokflow.tokenizers.chat.template import ChatTemplate
from tokflow_tests.chat_templates import CHATML, OPEN, REASONING, assistant, call, user

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

"""Which turns of a chat are supervised: by the config, and by each message."""

from dataclasses import replace
from typing import Any

import pytest

from tokflow.tokenizers.chat import BadChatError, Chat
from tokflow_tests.chat_templates import FAMILIES, assistant, call, renderer_of, said, tool, user

TURNS = [user("u"), assistant("a"), user("v"), assistant("b"), user("w")]
END = "<|im_end|>"


def supervised(messages: list[Any], family: str = "chatml", **documents: Any) -> list[str]:
    first = documents.pop("first_supervised", 0)
    chat = Chat(messages, first_supervised=first)
    return said(renderer_of(FAMILIES[family], **documents).render(chat))


def test_the_last_turn_is_all_that_follows_the_users_last_question():
    hops = [user("u"), assistant("a"), user("v"), assistant("", tool_calls=[call(city="x")]),
            tool("t"), assistant("b")]  # fmt: skip

    assert supervised(TURNS, loss="last") == [f"b{END}"]
    assert len(supervised(hops, "reasoning", loss="last")) == 2
    assert len(supervised(hops, "reasoning")) == 3
    assert supervised([user("u")], loss="last") == []


def test_all_is_every_character_but_a_bos_of_the_template():
    [headers] = supervised(TURNS[:2], "headers", loss="all")
    quiet = [user("u"), assistant("a", weight=0), user("v")]

    assert headers.startswith("<|start_header_id|>user")
    assert headers.endswith("a<|eot_id|>")
    assert supervised(quiet, loss="all") == [
        f"<|im_start|>user\nu{END}\n<|im_start|>assistant\n",
        f"\n<|im_start|>user\nv{END}\n",
    ]


@pytest.mark.parametrize(
    "no", [{"weight": 0}, {"weight": 0.0}, {"weight": False}, {"train": False}]
)
@pytest.mark.parametrize("yes", [{}, {"weight": 1}, {"weight": 1.0}, {"train": True}])
def test_a_message_says_itself_whether_it_is_supervised(no: Any, yes: Any):
    messages = [user("u"), assistant("a", **no), user("v"), assistant("b", **yes)]

    assert supervised(messages) == [f"b{END}"]
    asked = [user("u"), assistant("a", train=True), *messages[2:]]
    assert supervised(asked, loss="last") == [f"a{END}", f"b{END}"]


def test_words_of_a_user_or_a_tool_are_supervised_if_they_ask_for_it():
    messages = [{**user("u"), "train": True}, assistant("a"), {**user("v"), "weight": 1}]
    answer = {**tool("t"), "train": True}

    assert supervised(messages) == ["u", f"a{END}"]
    assert supervised([user("u"), answer]) == ["t"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"weight": 0.5}, "0 or 1 as `weight` of message 1"),
        ({"weight": "1"}, "0 or 1 as `weight` of message 1"),
        ({"train": 1}, "true or false as `train` of message 1"),
        ({"train": True, "weight": 0}, "`train` and `weight` of message 1 that agree"),
    ],
)
def test_any_other_weight_is_a_bad_document(fields: Any, expected: str):
    with pytest.raises(BadChatError) as caught:
        supervised([user("u"), assistant("a", **fields)])

    assert caught.value.problem.expected == expected


def test_a_block_of_a_stop_token_alone_is_of_the_message_before_it():
    words = "{% generation %}{{ m.content }}{% endgeneration %}"
    template = FAMILIES["chatml"].template.replace(
        "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}",
        "<|im_start|>{{ m.role + '\n' }}{% if m.role == 'assistant' %}" + words
        + "{% generation %}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}",
    )  # fmt: skip
    family = replace(FAMILIES["chatml"], template=template)
    rendered = renderer_of(family).render(Chat([*TURNS[:3], assistant("b", weight=0)]))

    assert said(rendered) == [f"a{END}"]
    assert rendered.counts["turns"] == 2


def test_turns_before_the_completion_are_not_supervised():
    assert supervised(TURNS, first_supervised=2) == [f"b{END}"]
    assert supervised(TURNS, first_supervised=2, loss="last") == [f"b{END}"]


CALLED = '\n<tool_call>\n{"name": "weather", "arguments": {"city": "x"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("answer", "family", "expected"),
    [
        (assistant("a", reasoning_content="why"), "reasoning", f"a{END}"),
        (assistant("<think>\nwhy\n</think>\n\na"), "reasoning", f"a{END}"),
        (assistant("why\n</think>\n\na"), "reasoning", f"a{END}"),  # opened by a prompt
        (assistant("a"), "reasoning", f"a{END}"),
        (assistant("a"), "chatml", f"a{END}"),
        (
            assistant("", tool_calls=[call(city="x")], reasoning_content="why"),
            "reasoning",
            f"{CALLED.lstrip()}{END}",
        ),
        (assistant("a", thinking="why"), "channels", "a<|return|>"),
    ],
)
def test_without_reasoning_the_answer_and_the_calls_are_left(
    answer: Any, family: str, expected: str
):
    assert supervised([user("u"), answer], family, loss_reasoning=False) == [expected]
    if "reasoning_content" in answer:
        *_, text = supervised([user("u"), answer], family, loss="all", loss_reasoning=False)
        assert text == f"{expected}\n"
